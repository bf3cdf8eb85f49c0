"""Repeated kills of processes that work on a SQLite store, with checks after each kill."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

from ingot.engines.sqlite.store_folder import FILE_NAME
from tests.faults.forkserver import FORKSERVER
from tests.faults.history import History, HistoryFile
from tests.faults.invariants import Broken, check_file
from tests.faults.recorded_calls import HeldAttempt
from tests.faults.store_process import Plan, work
from tests.faults.tables import Tables

LEASE_SECONDS = 0.15
WORK_SECONDS_MAX = 5.0
KILL_SECONDS_MAX = 0.6
JOIN_SECONDS_MAX = 240.0
SHARED_ATTEMPTS_MAX = 40


class StoreKillRun:
    """One store in a folder of its own, and the processes that work on it, one after the other."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.seed = seed
        self.kills = 0
        self._runs = 0
        self._random = random.Random(seed)
        self._data = folder / "data"
        self._copy = folder / "copy"
        self._output = folder / "output.txt"
        folder.mkdir(parents=True, exist_ok=True)
        self._file = HistoryFile(folder / "history.jsonl")

    @property
    def history(self) -> History:
        """All calls and results so far."""
        return self._file.history

    def kill_at_random(self, *, seconds_max: float = KILL_SECONDS_MAX) -> None:
        """Let a process work and kill it at a random moment, sometimes after a stop that exceeds its leases."""
        process = self._start(seconds=WORK_SECONDS_MAX)
        early = self._random.random() < 0.1
        time.sleep(self._random.uniform(0.0, 0.05) if early else self._random.uniform(0.05, seconds_max))
        if self._random.random() < 0.1:
            self._signal(process, signal.SIGSTOP)
            time.sleep(2 * LEASE_SECONDS)
            self._signal(process, signal.SIGCONT)
            time.sleep(self._random.uniform(0.0, 0.2))
        self._signal(process, signal.SIGKILL)
        self._end(process, killed=True)

    def kill_at(self, point: str, countdown: int, *, seconds: float = WORK_SECONDS_MAX) -> None:
        """Let a process work until it kills itself at a named point. Raises `Broken` if it does not reach the point."""
        process = self._start(seconds=seconds, point=point, countdown=countdown)
        try:
            self._end(process, killed=True)
        except Broken as error:
            error.add_note(f"the point {point!r} was not reached {countdown} times")
            raise

    def work(self, seconds: float) -> None:
        """Let a process work and exit normally."""
        self._end(self._start(seconds=seconds), killed=False)

    def drain(self) -> Tables:
        """Let a last process finish all jobs, including poisoned ones. Raises `Broken` if a job cannot be finished."""
        self._end(self._start(seconds=None), killed=False)
        if ("drained", True) not in self.history.notes:
            raise Broken(self._with_seed("J9 the work did not finish"))
        return self.check(self._data)

    def check(self, folder: Path | None = None) -> Tables:
        """Check a copy of the file and its log, because the next process has to recover the originals."""
        self._file.read_new_lines()
        if folder is None:
            folder = self._copy
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            for name in (FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-journal"):
                if (self._data / name).exists():
                    shutil.copyfile(self._data / name, folder / name)
        try:
            return check_file(folder / FILE_NAME, self.history)
        except Broken as error:
            raise Broken(self._with_seed(str(error))) from None

    def _start(self, *, seconds: float | None, point: str | None = None, countdown: int = 1) -> BaseProcess:
        self._runs += 1
        plan = Plan(
            folder=self._data,
            history=self.folder / "history.jsonl",
            output=self._output,
            run=self._runs,
            seed=self._random.randrange(2**32),
            lease_seconds=LEASE_SECONDS,
            checkpoint_pages=self._random.choice((8, 50, 4000)),
            seconds=seconds,
            attempts=self._attempts_to_share(),
            point=point,
            countdown=countdown,
        )
        process = FORKSERVER.Process(target=work, args=(plan,), daemon=True)
        process.start()
        return process

    def _attempts_to_share(self) -> list[HeldAttempt]:
        """Choose attempts of earlier processes: their workers still run and do not know that the server was killed."""
        calls = [
            call for call in self.history.of("claim")[-400:] if call.acked and call.arguments["types"] != ["poison"]
        ]
        claims = [claim for call in calls for claim in call.answer]
        poison = {
            job
            for call in self.history.of("claim")
            if "poison" in call.arguments["types"]
            for job, *_ in call.answer or ()
        }
        settleable = [claim for claim in claims if claim[0] not in poison]
        return [
            HeldAttempt(job, fence)
            for job, fence, _ in self._random.sample(settleable, min(len(settleable), SHARED_ATTEMPTS_MAX))
        ]

    def _signal(self, process: BaseProcess, number: signal.Signals) -> None:
        assert process.pid is not None
        if process.is_alive():
            os.kill(process.pid, number)

    def _end(self, process: BaseProcess, *, killed: bool) -> None:
        process.join(JOIN_SECONDS_MAX)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise Broken(self._with_seed("the process did not end"))
        self.kills += process.exitcode == -signal.SIGKILL
        lines = self._output.read_text(errors="replace").splitlines() if self._output.exists() else []
        output = "\n".join(line for line in lines if "leases_lost" not in line and "job_dead" not in line)[-4000:]
        if output or process.exitcode != (-signal.SIGKILL if killed else 0):
            raise Broken(
                self._with_seed(f"the process ended with {process.exitcode} and printed: {output or 'nothing'}")
            )
        self._file.read_new_lines()

    def _with_seed(self, text: str) -> str:
        return f"{text}\nseed {self.seed}, kill {self.kills}, run {self._runs}; the store is kept in {self.folder}"
