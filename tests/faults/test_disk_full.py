"""A disk that is full, or fails: the caller is told what is known, and the store goes on when the disk does."""

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
from tests.faults.watched_files import WatchedFile, Watcher
from tests.faults.workload import Workload

WRITES_TRIED_MAX = 200


class BadDisk(Watcher):
    """Does as it is told: how much room it has, and whether writes or syncs fail.

    Only the log goes bad. An error in a checkpoint, after the commit, is swallowed by SQLite, but would come out of
    the commit when a VFS in Python raises it; `test_a_checkpoint_that_fails_spoils_no_commit` has a real one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0
        self.heal()

    def heal(self) -> None:
        """All is well from now on."""
        self.room: int | None = None  # How many writes succeed before the disk is full.
        self.failing = ""  # What fails: `write`, `sync`, `read`, or a `write` and everything after it (`dying`).
        self.chance: Callable[[], bool] = lambda: False

    def write(self, file: WatchedFile, data: bytes, offset: int) -> None:
        if file.is_log:
            if self.room == 0 or self.chance():
                self._fail(apsw.FullError)
            if self.failing in ("write", "dying", "dead") or self.chance():
                self.failing = self.failing.replace("dying", "dead")
                self._fail(apsw.IOError)
            if self.room is not None:
                self.room -= 1
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


class Desk(Bench):
    """A bench on a bad disk with one job in each state, so that every call has something to change."""

    folder: Path
    disk: BadDisk
    queued: Job
    held: Claim
    finished: Job

    async def prepare(self, disk: BadDisk) -> None:
        """Make the jobs."""
        self.disk = disk
        self.finished = await self.make_job_in(JobStatus.SUCCEEDED)
        self.held = await self.make_claim()
        self.queued = await self.make_job(tags=["first"])
        await self.make_job("later", delay=LEASE_SECONDS)

    async def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """All that is in the file."""

        def read() -> dict[str, list[tuple[Any, ...]]]:
            with closing(open_file(self.folder / FILE_NAME)) as connection:
                return dump(connection)

        return await asyncio.to_thread(read)

    async def finish_all(self) -> None:
        """Prove that lanes, agenda and counts are right: every job can be finished, and the counts say so."""
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
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    disk, clock, folder = BadDisk(), ManualClock(), tmp_path / "data"
    store = await SQLiteStore.open(folder, clock=clock, lease_seconds=LEASE_SECONDS, vfs=disk.vfs)
    clock.advance(seconds=LEASE_SECONDS)
    desk = Desk(store, clock, await Tenants(store).ensure_default())
    desk.folder = folder
    await desk.prepare(disk)
    yield desk
    disk.heal()
    await store.close()


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[EventDict]]:
    """What was logged; drawing every traceback takes longer than the tests."""
    with capture_logs() as logs:
        yield logs


Call = Callable[[Desk], Awaitable[object]]


async def _sweep(desk: Desk) -> object:
    desk.clock.advance(seconds=LEASE_SECONDS)
    return await desk.jobs.maintain()


CALLS: dict[str, Call] = {
    "enqueue": lambda desk: desk.jobs.enqueue(desk.tenant, "noop", {"n": 1}, idempotency_key="k", dedupe_key="d"),
    "enqueue many": lambda desk: desk.jobs.enqueue_many([new_job(desk.tenant, "noop", "x" * 9000) for _ in range(30)]),
    "claim": lambda desk: desk.jobs.claim("other", ["noop"], limit=5),
    "heartbeat": lambda desk: desk.jobs.heartbeat(desk.held.job.id, desk.held.fence, progress=Progress(percent=50)),
    "complete": lambda desk: desk.jobs.complete(desk.held, {"a": 1}),
    "fail": lambda desk: desk.jobs.fail(desk.held, "broken"),
    "snooze": lambda desk: desk.jobs.snooze(desk.held, 60),
    "release": lambda desk: desk.jobs.release(desk.held),
    "cancel": lambda desk: desk.jobs.cancel(desk.tenant, desk.queued.id),
    "retry": lambda desk: desk.jobs.retry(desk.tenant, desk.finished.id),
    "reschedule": lambda desk: desk.jobs.reschedule(desk.tenant, desk.queued.id, priority=1, tags=["second"]),
    "sweep": _sweep,
    "define": lambda desk: desk.jobs.define(Definition(type="noop", max_attempts=9)),
    "create a tenant": lambda desk: desk.tenants.create("other"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_full_disk_changes_nothing_and_the_store_goes_on(desk: Desk, call: Call) -> None:
    before = await desk.rows()
    desk.disk.room = 0
    for _ in range(2):
        with pytest.raises(StorageFull):
            await call(desk)
    assert await desk.rows() == before
    desk.disk.heal()
    await call(desk)
    assert await desk.rows() != before
    await desk.finish_all()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_disk_that_fills_up_at_any_write_changes_nothing(desk: Desk, call: Call) -> None:
    before = await desk.rows()
    for room in range(WRITES_TRIED_MAX):
        desk.disk.room = room
        try:
            await call(desk)
        except StorageFull:
            assert await desk.rows() == before
        else:
            break
    assert 0 < room < WRITES_TRIED_MAX - 1
    desk.disk.heal()
    await desk.finish_all()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("failing", ["write", "sync"])
async def test_a_disk_that_fails_leaves_the_outcome_unknown(desk: Desk, call: Call, failing: str) -> None:
    before = await desk.rows()
    desk.disk.failing = failing
    with pytest.raises(OutcomeUnknown):
        await call(desk)
    desk.disk.heal()
    assert await desk.rows() == before, "SQLite rolls back, so nothing is there while the process lives"
    await call(desk)
    await desk.finish_all()


async def test_a_store_trusts_nothing_it_could_not_read_again(desk: Desk, logs: list[EventDict]) -> None:
    """The disk goes away while a claim takes the last job of its lane, and with it the way to look up the lanes."""
    desk.sqlite.connection.pragma("cache_size", 0)
    desk.disk.failing = "dying"
    with pytest.raises(OutcomeUnknown):
        await desk.jobs.claim("other", ["noop"], limit=100)
    with pytest.raises(StoreError, match="cannot read its file"):
        await desk.jobs.claim("other", ["noop"], limit=100)
    assert "recovery_failed" in {entry["event"] for entry in logs}
    desk.disk.heal()
    assert [claim.job.id for claim in await desk.jobs.claim("other", ["noop"], limit=100)] == [desk.queued.id]
    await desk.finish_all()


async def test_a_read_that_fails_says_so_and_the_next_one_succeeds(desk: Desk) -> None:
    await desk.reload(desk.queued)
    desk.disk.failing = "read"
    with pytest.raises(StoreError, match="could not be read"):
        await desk.jobs.attempts(desk.tenant, desk.finished.id)
    desk.disk.heal()
    assert len(await desk.jobs.attempts(desk.tenant, desk.finished.id)) == 1


@pytest.mark.parametrize("there", [False, True], ids=["new", "there"])
async def test_a_store_that_cannot_be_opened_says_why(tmp_path: Path, there: bool) -> None:
    disk, clock = BadDisk(), ManualClock()

    async def open_and_close() -> None:
        store = await SQLiteStore.open(tmp_path, clock=clock, lease_seconds=LEASE_SECONDS, vfs=disk.vfs)
        await store.close()

    if there:
        await open_and_close()
    disk.room = 0
    with pytest.raises(StorageFull):
        await open_and_close()
    disk.heal()
    disk.failing = "write"
    with pytest.raises(StoreError, match="could not be opened"):
        await open_and_close()
    disk.heal()
    await open_and_close()


async def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"something else " * 1000)
    with pytest.raises(StoreError, match="not a database"):
        await SQLiteStore.open(tmp_path, clock=ManualClock(), lease_seconds=LEASE_SECONDS)


async def test_reads_go_on_while_the_disk_is_full(desk: Desk) -> None:
    desk.disk.room = 0
    with pytest.raises(StorageFull):
        await desk.make_job()
    assert (await desk.reload(desk.queued)).status is JobStatus.QUEUED


async def test_one_failed_group_answers_every_caller_in_it(desk: Desk) -> None:
    desk.disk.room = 0
    answers = await asyncio.gather(*(desk.make_job() for _ in range(50)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {StorageFull}
    desk.disk.heal()
    assert len(await asyncio.gather(*(desk.make_job() for _ in range(50)))) == 50


async def test_a_checkpoint_that_fails_spoils_no_commit(tmp_path: Path) -> None:
    """What was committed to the log is durable, whether it can be moved to the file or not."""
    clock, folder = ManualClock(), tmp_path / "data"
    store = await SQLiteStore.open(folder, clock=clock, lease_seconds=LEASE_SECONDS)
    desk = Desk(store, clock, await Tenants(store).ensure_default())
    await desk.jobs.enqueue_many([new_job(desk.tenant, "noop", "x" * 9000) for _ in range(100)])
    store.connection.pragma("wal_autocheckpoint", 1)
    await desk.make_job()
    size = (folder / FILE_NAME).stat().st_size
    with no_file_larger_than(size):
        jobs = [await desk.make_job(payload="x" * 9000) for _ in range(5)]
        assert (folder / FILE_NAME).stat().st_size == size
    jobs.append(await desk.make_job())
    assert (folder / FILE_NAME).stat().st_size > size
    for job in jobs:
        assert (await desk.reload(job)).status is JobStatus.QUEUED
    await desk.finish_all()
    await store.close()


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """A write beyond this size fails, in this process and for as long as the block lasts."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("life_number", range(3))
async def test_work_on_a_disk_that_fails_now_and_then_stays_right(
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
    assert {entry["event"] for entry in logs} <= {"commit_failed", "loop_failed"}


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
    disk.heal()
    await maintenance.stop()
    await store.close()


async def test_a_really_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as folder:
        clock = ManualClock()
        store = await SQLiteStore.open(folder / "data", clock=clock, lease_seconds=LEASE_SECONDS)
        bench = Bench(store, clock, await Tenants(store).ensure_default())
        made = [await bench.make_job(payload="x" * 1000)]
        filler = folder / "filler"
        _fill(filler)
        with suppress(StorageFull):
            while len(made) < 1000:
                made.append(await bench.make_job(payload="x" * 1000))
        assert len(made) < 1000
        with pytest.raises(StorageFull):
            await bench.make_job(payload="x" * 1000)
        stored = (await bench.jobs.list(bench.tenant, limit=1000)).items
        assert [job.id for job in reversed(stored)] == [job.id for job in made]
        filler.unlink()
        made.append(await bench.make_job())
        await store.close()
        again = await SQLiteStore.open(folder / "data", clock=clock, lease_seconds=LEASE_SECONDS)
        claims = await Jobs(again, lease_seconds=LEASE_SECONDS).claim("worker", ["noop"], limit=1000)
        await again.close()
        assert [claim.job.id for claim in claims] == [job.id for job in made]


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4096):
            pass
