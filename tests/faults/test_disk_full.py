"""A SQLite store on a disk that is full or fails: callers get the right error, and the store recovers with the disk."""

from __future__ import annotations

import asyncio
import random
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from ingot.engines.sqlite import SQLiteStore
from ingot.engines.sqlite.store_folder import FILE_NAME
from ingot.identity import Tenants
from ingot.jobs import Claim, Definition, Job, Jobs, JobStatus, Progress
from ingot.jobs.job_options import new_job
from ingot.jobs.maintenance import JobMaintenance
from ingot.kernel.clock import ManualClock, SystemClock
from ingot.kernel.errors import OutcomeUnknown, StorageFull, StoreError
from tests.factories import LEASE_SECONDS, Bench
from tests.faults.history import Line, ListRecorder, Recorder
from tests.faults.invariants import check_file
from tests.faults.powercut import history_of
from tests.faults.small_disk import small_disk
from tests.faults.tables import dump, open_file
from tests.faults.watched_files import WatchedFile, WatchingVFS
from tests.faults.workload import Workload

WRITES_TRIED_MAX = 200


class BadDisk(WatchingVFS):
    """A disk on which a test chooses how many writes succeed, and whether writes or syncs fail.

    Only the log is affected. SQLite ignores an error in a checkpoint, which comes after the commit, but an error that a
    VFS in Python raises there would fail the commit. The test of a failed checkpoint therefore causes a real error.
    """

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0
        self.repair()

    def repair(self) -> None:
        """Let all calls succeed from now on."""
        self.writes_left: int | None = None  # Writes that succeed before the disk is full.
        self.failing = ""  # What fails: `write`, `sync`, `read`, or a `write` and all later calls (`dying`).
        self.chance: Callable[[], bool] = lambda: False

    def write(self, file: WatchedFile, data: bytes, offset: int) -> None:
        if file.is_log:
            if self.writes_left == 0 or self.chance():
                self._fail(apsw.FullError)
            if self.failing in ("write", "dying", "dead") or self.chance():
                self.failing = self.failing.replace("dying", "dead")
                self._fail(apsw.IOError)
            if self.writes_left is not None:
                self.writes_left -= 1
        super().write(file, data, offset)

    def sync(self, file: WatchedFile, flags: int) -> None:
        if file.is_log and (self.failing in ("sync", "dead") or self.chance()):
            self._fail(apsw.IOError)
        super().sync(file, flags)

    def read(self, file: WatchedFile, amount: int, offset: int) -> bytes:
        if self.failing in ("read", "dead"):
            self._fail(apsw.IOError)
        return super().read(file, amount, offset)

    def _fail(self, error: type[apsw.Error]) -> None:
        self.failures += 1
        raise error


class FullDiskBench(Bench):
    """A bench on such a disk with a queued, a running and a finished job, so that every call has an effect."""

    folder: Path
    disk: BadDisk
    queued: Job
    claim: Claim
    finished: Job

    async def prepare(self, disk: BadDisk) -> None:
        """Create the jobs."""
        self.disk = disk
        self.finished = await self.make_job_in(JobStatus.SUCCEEDED)
        self.claim = await self.make_claim()
        self.queued = await self.make_job(tags=["first"])
        await self.make_job("later", delay=LEASE_SECONDS)

    async def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Read all rows of the file."""

        def read() -> dict[str, list[tuple[Any, ...]]]:
            with closing(open_file(self.folder / FILE_NAME)) as connection:
                return dump(connection)

        return await asyncio.to_thread(read)

    async def finish_all(self) -> None:
        """Check that lanes, schedule and counts are consistent: every job can be finished, and the counts agree."""
        self.clock.advance(seconds=2 * LEASE_SECONDS)
        for _ in range(20):
            await self.jobs.maintain()
            for claim in await self.jobs.claim("last", ["noop", "later"], limit=1000):
                await self.jobs.complete(claim)
            self.clock.advance(seconds=10)
        counts = (await self.jobs.summary(self.tenant)).counts
        assert counts[JobStatus.QUEUED] == counts[JobStatus.RUNNING] == 0
        page = await self.jobs.list(self.tenant, limit=1000)
        assert counts == {status: sum(job.status is status for job in page.items) for status in JobStatus}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[FullDiskBench]:
    disk, clock, folder = BadDisk(), ManualClock(), tmp_path / "data"
    store = await SQLiteStore.open(folder, clock=clock, lease_seconds=LEASE_SECONDS, vfs=disk.vfs)
    clock.advance(seconds=LEASE_SECONDS)
    bench = FullDiskBench(store, clock, await Tenants(store).ensure_default())
    bench.folder = folder
    await bench.prepare(disk)
    yield bench
    disk.repair()
    await store.close()


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[EventDict]]:
    """Capture log entries, because rendering every traceback takes longer than the tests."""
    with capture_logs() as logs:
        yield logs


Call = Callable[[FullDiskBench], Awaitable[object]]


async def _sweep(bench: FullDiskBench) -> object:
    bench.clock.advance(seconds=LEASE_SECONDS)
    return await bench.jobs.maintain()


CALLS: dict[str, Call] = {
    "enqueue": lambda bench: bench.jobs.enqueue(bench.tenant, "noop", {"n": 1}, idempotency_key="k", dedupe_key="d"),
    "enqueue many": lambda bench: bench.jobs.enqueue_many(
        [new_job(bench.tenant, "noop", "x" * 9000) for _ in range(30)]
    ),
    "claim": lambda bench: bench.jobs.claim("other", ["noop"], limit=5),
    "heartbeat": lambda bench: bench.jobs.heartbeat(
        bench.claim.job.id, bench.claim.fence, progress=Progress(percent=50)
    ),
    "complete": lambda bench: bench.jobs.complete(bench.claim, {"a": 1}),
    "fail": lambda bench: bench.jobs.fail(bench.claim, "broken"),
    "snooze": lambda bench: bench.jobs.snooze(bench.claim, 60),
    "release": lambda bench: bench.jobs.release(bench.claim),
    "cancel": lambda bench: bench.jobs.cancel(bench.tenant, bench.queued.id),
    "retry": lambda bench: bench.jobs.retry(bench.tenant, bench.finished.id),
    "reschedule": lambda bench: bench.jobs.reschedule(bench.tenant, bench.queued.id, priority=1, tags=["second"]),
    "sweep": _sweep,
    "define": lambda bench: bench.jobs.define(Definition(type="noop", max_attempts=9)),
    "create a tenant": lambda bench: bench.tenants.create("other"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_call_on_a_full_disk_changes_nothing_and_succeeds_later(bench: FullDiskBench, call: Call) -> None:
    before = await bench.rows()
    bench.disk.writes_left = 0
    for _ in range(2):
        with pytest.raises(StorageFull):
            await call(bench)
    assert await bench.rows() == before
    bench.disk.repair()
    await call(bench)
    assert await bench.rows() != before
    await bench.finish_all()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_disk_that_fills_up_during_a_call_leaves_no_change(bench: FullDiskBench, call: Call) -> None:
    before = await bench.rows()
    for writes_left in range(WRITES_TRIED_MAX):
        bench.disk.writes_left = writes_left
        try:
            await call(bench)
        except StorageFull:
            assert await bench.rows() == before
        else:
            break
    assert 0 < writes_left < WRITES_TRIED_MAX - 1
    bench.disk.repair()
    await bench.finish_all()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("failing", ["write", "sync"])
async def test_a_call_on_a_failing_disk_has_an_unknown_outcome(bench: FullDiskBench, call: Call, failing: str) -> None:
    before = await bench.rows()
    bench.disk.failing = failing
    with pytest.raises(OutcomeUnknown):
        await call(bench)
    bench.disk.repair()
    assert await bench.rows() == before, "SQLite did not roll back in the running process"
    await call(bench)
    await bench.finish_all()


async def test_a_store_that_cannot_reload_its_lanes_refuses_claims_until_it_can(
    bench: FullDiskBench, logs: list[EventDict]
) -> None:
    """The disk fails while a claim takes the last job of its lane, and the lanes cannot be read again."""
    bench.sqlite.connection.pragma("cache_size", 0)
    bench.disk.failing = "dying"
    with pytest.raises(OutcomeUnknown):
        await bench.jobs.claim("other", ["noop"], limit=100)
    with pytest.raises(StoreError, match="cannot read its file"):
        await bench.jobs.claim("other", ["noop"], limit=100)
    assert "recovery_failed" in {entry["event"] for entry in logs}
    bench.disk.repair()
    assert [claim.job.id for claim in await bench.jobs.claim("other", ["noop"], limit=100)] == [bench.queued.id]
    await bench.finish_all()


async def test_a_failed_read_raises_an_error_and_the_next_one_succeeds(bench: FullDiskBench) -> None:
    await bench.reload(bench.queued)
    bench.disk.failing = "read"
    with pytest.raises(StoreError, match="could not be read"):
        await bench.jobs.attempts(bench.tenant, bench.finished.id)
    bench.disk.repair()
    assert len(await bench.jobs.attempts(bench.tenant, bench.finished.id)) == 1


@pytest.mark.parametrize("exists", [False, True], ids=["new", "existing"])
async def test_opening_a_store_on_a_full_or_failing_disk_raises_an_error(tmp_path: Path, exists: bool) -> None:
    disk, clock = BadDisk(), ManualClock()

    async def open_and_close() -> None:
        store = await SQLiteStore.open(tmp_path, clock=clock, lease_seconds=LEASE_SECONDS, vfs=disk.vfs)
        await store.close()

    if exists:
        await open_and_close()
    disk.writes_left = 0
    with pytest.raises(StorageFull):
        await open_and_close()
    disk.repair()
    disk.failing = "write"
    with pytest.raises(StoreError, match="could not be opened"):
        await open_and_close()
    disk.repair()
    await open_and_close()


async def test_a_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"something else " * 1000)
    with pytest.raises(StoreError, match="not a database"):
        await SQLiteStore.open(tmp_path, clock=ManualClock(), lease_seconds=LEASE_SECONDS)


async def test_reads_succeed_while_the_disk_is_full(bench: FullDiskBench) -> None:
    bench.disk.writes_left = 0
    with pytest.raises(StorageFull):
        await bench.make_job()
    assert (await bench.reload(bench.queued)).status is JobStatus.QUEUED


async def test_every_call_of_a_failed_group_commit_gets_the_error(bench: FullDiskBench) -> None:
    bench.disk.writes_left = 0
    answers = await asyncio.gather(*(bench.make_job() for _ in range(50)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {StorageFull}
    bench.disk.repair()
    assert len(await asyncio.gather(*(bench.make_job() for _ in range(50)))) == 50


async def test_a_failed_checkpoint_loses_no_commit(tmp_path: Path) -> None:
    """A commit in the log is durable even if the checkpoint cannot copy it to the file."""
    clock, folder = ManualClock(), tmp_path / "data"
    store = await SQLiteStore.open(folder, clock=clock, lease_seconds=LEASE_SECONDS)
    bench = FullDiskBench(store, clock, await Tenants(store).ensure_default())
    await bench.jobs.enqueue_many([new_job(bench.tenant, "noop", "x" * 9000) for _ in range(100)])
    store.connection.pragma("wal_autocheckpoint", 1)
    await bench.make_job()
    size = (folder / FILE_NAME).stat().st_size
    with no_file_larger_than(size):
        jobs = [await bench.make_job(payload="x" * 9000) for _ in range(5)]
        assert (folder / FILE_NAME).stat().st_size == size
    jobs.append(await bench.make_job())
    assert (folder / FILE_NAME).stat().st_size > size
    for job in jobs:
        assert (await bench.reload(job)).status is JobStatus.QUEUED
    await bench.finish_all()
    await store.close()


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """Let writes beyond this size fail, in this process and until the end of the block."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("life_number", range(3))
async def test_invariants_hold_on_a_disk_that_fails_at_random(
    tmp_path: Path, logs: list[EventDict], life_number: int
) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    disk, lines = BadDisk(), list[Line]()
    folder = tmp_path / f"seed-{seed}"
    for run in range(1, 5):
        await _work_on(disk, folder, chance, ListRecorder(str(run), lines))
        check_file(folder / FILE_NAME, history_of(lines))
    print(f"{disk.failures} failures, {history_of(lines).acked} acknowledged calls, seed {seed}")
    assert disk.failures > 5
    assert history_of(lines).acked > 100
    assert {line[2] for line in lines if line[0] == "info"} <= {"outcome_unknown"}
    assert {entry["event"] for entry in logs} <= {"commit_failed", "loop_failed", "leases_lost", "job_dead"}


async def _work_on(disk: BadDisk, folder: Path, chance: random.Random, recorder: Recorder) -> None:
    clock = SystemClock()
    store = await SQLiteStore.open(folder, clock=clock, lease_seconds=0.15, vfs=disk.vfs)
    store.connection.pragma("wal_autocheckpoint", chance.choice((8, 50, 4000)))
    maintenance = JobMaintenance(store)
    workload = Workload(store, clock, recorder, lease_seconds=0.15, seed=chance.randrange(2**32))
    await workload.prepare()
    maintenance.start()
    disk.chance = lambda: chance.random() < 0.005
    await workload.run(0.5)
    disk.repair()
    await maintenance.stop()
    await store.close()


async def test_a_store_on_a_full_file_system_keeps_acknowledged_jobs_and_recovers(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as folder:
        clock = ManualClock()
        store = await SQLiteStore.open(folder / "data", clock=clock, lease_seconds=LEASE_SECONDS)
        bench = Bench(store, clock, await Tenants(store).ensure_default())
        jobs = [await bench.make_job(payload="x" * 1000)]
        filler = folder / "filler"
        _fill(filler)
        with suppress(StorageFull):
            while len(jobs) < 1000:
                jobs.append(await bench.make_job(payload="x" * 1000))
        assert len(jobs) < 1000
        with pytest.raises(StorageFull):
            await bench.make_job(payload="x" * 1000)
        stored = (await bench.jobs.list(bench.tenant, limit=1000)).items
        assert [job.id for job in reversed(stored)] == [job.id for job in jobs]
        filler.unlink()
        jobs.append(await bench.make_job())
        await store.close()
        reopened = await SQLiteStore.open(folder / "data", clock=clock, lease_seconds=LEASE_SECONDS)
        claims = await Jobs(reopened, lease_seconds=LEASE_SECONDS).claim("worker", ["noop"], limit=1000)
        await reopened.close()
        assert [claim.job.id for claim in claims] == [job.id for job in jobs]


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4096):
            pass
