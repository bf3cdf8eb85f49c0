"""A single failed read in a transaction: the transaction is rolled back as a whole or not at all."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import apsw
import pytest

from ingot.engines.sqlite import SQLiteStore
from ingot.engines.sqlite.store_folder import FILE_NAME
from ingot.identity import Tenants
from ingot.jobs import Jobs
from ingot.jobs.job_options import new_job
from ingot.kernel.clock import ManualClock
from tests.factories import LEASE_SECONDS
from tests.faults.tables import open_file

JOBS, CLAIMED, NEW = 300, 200, 7


class FlakyReads(apsw.VFS):
    """Fails one read of the writer after `countdown` successful ones."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "")
        self.countdown: int | None = None
        self.failures = 0

    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return FlakyFile(self, name, flags)


class FlakyFile(apsw.VFSFile):
    """A file on that disk."""

    def __init__(self, disk: FlakyReads, name: apsw.URIFilename | str | None, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._disk = disk

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        disk = self._disk
        if disk.countdown is not None and threading.current_thread().name == "ingot-writer":
            disk.countdown -= 1
            if disk.countdown < 0:
                disk.countdown = None
                disk.failures += 1
                raise apsw.IOError("a read that failed")
        return super().xRead(amount, offset)


async def _many_lost_leases(folder: Path, clock: ManualClock) -> str:
    store = await SQLiteStore.open(folder, clock=clock, lease_seconds=LEASE_SECONDS)
    jobs, tenant = Jobs(store, lease_seconds=LEASE_SECONDS), (await Tenants(store).ensure_default()).id
    await jobs.enqueue_many([new_job(tenant, "old", {"pad": "x" * 300}) for _ in range(JOBS)])
    await jobs.claim("worker", ["old"], limit=CLAIMED)
    await store.close()
    return tenant


@pytest.mark.parametrize("good_reads", range(24))
async def test_a_failed_read_leaves_jobs_counts_and_outcomes_consistent(tmp_path: Path, good_reads: int) -> None:
    clock, folder = ManualClock(), tmp_path / "data"
    tenant = await _many_lost_leases(folder, clock)
    disk = FlakyReads(f"flaky-{good_reads}")
    store = await SQLiteStore.open(folder, clock=clock, lease_seconds=LEASE_SECONDS, vfs=f"flaky-{good_reads}")
    jobs = Jobs(store, lease_seconds=LEASE_SECONDS)
    clock.advance(seconds=10 * LEASE_SECONDS)
    disk.countdown = good_reads
    enqueued, maintained = await asyncio.gather(
        jobs.enqueue_many([new_job(tenant, "new") for _ in range(NEW)]), jobs.maintain(), return_exceptions=True
    )
    await store.close()
    with open_file(folder / FILE_NAME) as file:
        states = dict(file.execute("SELECT status, count(*) FROM states GROUP BY status"))
        counts = dict(file.execute("SELECT status, jobs FROM counts WHERE type = '' AND jobs <> 0"))
        swept = file.execute("SELECT count(*) FROM outcomes WHERE outcome = 'lost'").get
    # Usually both calls share a transaction. A fast writer commits them one after the other.
    enqueue_failed, sweep_failed = isinstance(enqueued, BaseException), isinstance(maintained, BaseException)
    assert (enqueue_failed or sweep_failed) == (disk.failures > 0)
    assert sum(states.values()) == JOBS + (0 if enqueue_failed else NEW)
    assert swept == (0 if sweep_failed else CLAIMED)
    assert counts == states
