"""A blob folder whose process is killed again and again, and the checks after each end of one."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from tests.faults.forkserver import PROCESSES
from tests.faults.invariants import Broken
from tests.faults.object_process import Line, ObjectPlan, bytes_of, work

START_SECONDS_MAX = 90.0
WORK_SECONDS_MAX = 0.12
UNFINISHED_MAX = 12


class Told(msgspec.Struct):
    """What was told of a place last."""

    state: str = "begin"
    kept: int = 0
    size: int = 0


class ObjectLife:
    """One blob folder, from its first opening on."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.seed = seed
        self.kills = self.acked = 0
        self._random = random.Random(seed)
        self._data = folder / "data"
        self._output = folder / "output.txt"
        self._history = folder / "history.jsonl"
        self._read = 0
        self._told: dict[str, Told] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def kill_at_random(self) -> None:
        """Let a process work and kill it at some moment, now and then before it has begun."""
        plan = ObjectPlan(
            folder=self._data,
            history=self._history,
            output=self._output,
            seed=self._random.randrange(2**32),
            stored=[storage_key for storage_key, told in self._told.items() if told.state == "finished"],
            unfinished=self._unfinished(),
        )
        size = self._history.stat().st_size if self._history.exists() else 0
        process = PROCESSES.Process(target=work, args=(plan,), daemon=True)
        process.start()
        if self._random.random() < 0.9:
            deadline = time.monotonic() + START_SECONDS_MAX
            while process.is_alive() and time.monotonic() < deadline:
                if self._history.exists() and self._history.stat().st_size > size + 1:
                    break
                time.sleep(0.001)
        time.sleep(self._random.uniform(0.0, WORK_SECONDS_MAX))
        assert process.pid is not None
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
        process.join(START_SECONDS_MAX)
        said = self._output.read_text(errors="replace")[-4000:] if self._output.exists() else ""
        if process.exitcode != -signal.SIGKILL or said:
            raise self._broken(f"the process ended with {process.exitcode} and said: {said or 'nothing'}")
        self.kills += 1
        self._read_on()

    def check(self) -> None:
        """Look at every file: what was finished is whole, and at a final name there is nothing else but whole ones."""
        final = {path.name: path for path in self._data.glob("blobs/??/*")}
        for storage_key, told in self._told.items():
            path = final.pop(storage_key, None)
            if told.state == "finished" and path is None:
                raise self._broken(f"B1 the object {storage_key} was finished and is gone")
            if path is None:
                continue
            if told.state not in ("finishing", "finished", "deleting"):
                raise self._broken(
                    f"B3 the object {storage_key} is at its final name and was last told to {told.state}"
                )
            if path.read_bytes() != bytes_of(storage_key, 0, told.size):
                raise self._broken(f"B2 the object {storage_key} is not what was stored")
        if final:
            raise self._broken(f"B3 nobody knows of {sorted(final)}")
        for storage_key in [storage_key for storage_key, told in self._told.items() if told.state == "deleted"]:
            del self._told[storage_key]

    def _unfinished(self) -> dict[str, int]:
        """Uploads to go on with, and objects whose end nobody was told of: they may be at their final name."""
        open_ones = [
            (storage_key, told.kept)
            for storage_key, told in self._told.items()
            if told.state in ("begin", "kept", "finishing")
        ]
        return dict(self._random.sample(open_ones, min(len(open_ones), UNFINISHED_MAX)))

    def _read_on(self) -> None:
        if not self._history.exists():
            return
        with self._history.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            with suppress(msgspec.DecodeError):
                self._add(*msgspec.json.decode(line, type=Line))

    def _add(self, what: str, storage_key: str, count: int) -> None:
        told = self._told.setdefault(storage_key, Told())
        told.state = what
        if what == "kept":
            told.kept = count
        elif what in ("finishing", "finished"):
            told.size = count
        self.acked += what in ("kept", "finished", "deleted")

    def _broken(self, text: str) -> Broken:
        return Broken(f"{text}\nseed {self.seed}, kill {self.kills}; the folder is kept in {self.folder}")
