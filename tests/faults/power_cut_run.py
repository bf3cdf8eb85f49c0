"""Repeated power cuts: work, a cut, and more work with the store that remains on the disk."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from unittest.mock import patch

from ingot.engines.sqlite import SQLiteStore
from ingot.engines.sqlite.connection import WRITER_PRAGMAS
from ingot.engines.sqlite.store_folder import FILE_NAME
from ingot.jobs.maintenance import JobMaintenance
from ingot.kernel.clock import SystemClock
from tests.faults.history import History, Line, ListRecorder
from tests.faults.invariants import Broken, check_file
from tests.faults.powercut import Disk, PowerCut, history_of
from tests.faults.workload import Workload

LEASE_SECONDS = 0.15
WORK_SECONDS = 0.4
CUTS_PER_RUN = 8


class PowerCutRun:
    """One store through many cuts. Each run continues from one of the cuts of the run before."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.seed = seed
        self.cuts = 0
        self._runs = 0
        self._random = random.Random(seed)
        self._lines: list[Line] = []
        self._data = folder / "data"
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def history(self) -> History:
        """The calls and results that precede the chosen cuts."""
        return history_of(self._lines)

    async def run(self) -> None:
        """Work for a while, check every cut taken meanwhile, and continue from one of them."""
        self._runs += 1
        disk = Disk(
            self._data,
            self._lines,
            seed=self._random.randrange(2**32),
            cuts=CUTS_PER_RUN,
            steps_between=self._random.choice((5, 100, 700, 700)),
        )
        checkpoint_pages = self._random.choice((8, 50, 4000))
        with disk.watching_folder(), patch.dict(WRITER_PRAGMAS, wal_autocheckpoint=checkpoint_pages):
            await self._work(disk)
        if not disk.cuts:  # The disk was too slow for a cut. The next run continues.
            return
        chosen = self._random.randrange(len(disk.cuts)) if self._random.random() < 0.3 else len(disk.cuts) - 1
        for index, cut in enumerate(disk.cuts):
            await self._check(cut, keep=index == chosen)
        self._lines = disk.cuts[chosen].history(self._lines)
        shutil.rmtree(self._data)
        (self.folder / "kept").rename(self._data)

    async def _work(self, disk: Disk) -> None:
        clock = SystemClock()
        store = await SQLiteStore.open(self._data, clock=clock, lease_seconds=LEASE_SECONDS, vfs=disk.vfs)
        maintenance = JobMaintenance(store)
        maintenance.start()
        recorder = ListRecorder(str(self._runs), self._lines)
        seed = self._random.randrange(2**32)
        workload = Workload(store, clock, recorder, lease_seconds=LEASE_SECONDS, seed=seed)
        await workload.prepare()
        await workload.run(WORK_SECONDS)
        await maintenance.stop()
        await store.close()

    async def _check(self, cut: PowerCut, *, keep: bool) -> None:
        """Check that the store opens after the cut and contains everything that was acknowledged."""
        self.cuts += 1
        folder = self.folder / f"cut-{self.cuts}"
        cut.build(folder, self._random)
        if keep:
            shutil.copytree(folder, self.folder / "kept")
        try:
            store = await SQLiteStore.open(folder, clock=SystemClock(), lease_seconds=LEASE_SECONDS)
            await store.close()
            check_file(folder / FILE_NAME, history_of(cut.history(self._lines)))
        except Exception as error:
            seed = f"seed {self.seed}, run {self._runs}, cut {self.cuts}; the store is kept in {folder}"
            raise Broken(f"{type(error).__name__}: {error}\n{seed}") from error
        shutil.rmtree(folder)
