"""Repeated kills of processes that work on a blob folder, with checks after each kill."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from tests.faults.forkserver import FORKSERVER
from tests.faults.invariants import Broken
from tests.faults.object_process import Line, ObjectPlan, bytes_of, work

START_SECONDS_MAX = 90.0
WORK_SECONDS_MAX = 0.12
UNFINISHED_MAX = 12


class ObjectState(msgspec.Struct):
    """The last step that was recorded for an object."""

    state: str = "begin"
    synced_bytes: int = 0
    size: int = 0


class ObjectKillRun:
    """One blob folder, and the processes that work on it, one after the other."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.seed = seed
        self.kills = self.acked = 0
        self._random = random.Random(seed)
        self._data = folder / "data"
        self._output = folder / "output.txt"
        self._history = folder / "history.jsonl"
        self._offset = 0
        self._objects: dict[str, ObjectState] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def kill_at_random(self) -> None:
        """Let a process work and kill it at a random moment, sometimes before its first step."""
        plan = ObjectPlan(
            folder=self._data,
            history=self._history,
            output=self._output,
            seed=self._random.randrange(2**32),
            stored=[storage_key for storage_key, state in self._objects.items() if state.state == "finished"],
            unfinished=self._unfinished(),
        )
        size = self._history.stat().st_size if self._history.exists() else 0
        process = FORKSERVER.Process(target=work, args=(plan,), daemon=True)
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
        output = self._output.read_text(errors="replace")[-4000:] if self._output.exists() else ""
        if process.exitcode != -signal.SIGKILL or output:
            raise self._broken(f"the process ended with {process.exitcode} and printed: {output or 'nothing'}")
        self.kills += 1
        self._read_new_lines()

    def check(self) -> None:
        """Check every file: finished objects are whole, and only whole objects have a final name. Raises `Broken`."""
        final = {path.name: path for path in self._data.glob("blobs/??/*")}
        for storage_key, state in self._objects.items():
            path = final.pop(storage_key, None)
            if state.state == "finished" and path is None:
                raise self._broken(f"B1 the object {storage_key} was finished and is missing")
            if path is None:
                continue
            if state.state not in ("finishing", "finished", "deleting"):
                raise self._broken(
                    f"B3 the object {storage_key} has its final name, and its last step was {state.state}"
                )
            if path.read_bytes() != bytes_of(storage_key, 0, state.size):
                raise self._broken(f"B2 the object {storage_key} has other bytes than were stored")
        if final:
            raise self._broken(f"B3 no step was recorded for {sorted(final)}")
        for storage_key in [storage_key for storage_key, state in self._objects.items() if state.state == "deleted"]:
            del self._objects[storage_key]

    def _unfinished(self) -> dict[str, int]:
        """Choose uploads to continue. If no end was recorded, the object may have its final name already."""
        unfinished = [
            (storage_key, state.synced_bytes)
            for storage_key, state in self._objects.items()
            if state.state in ("begin", "kept", "finishing")
        ]
        return dict(self._random.sample(unfinished, min(len(unfinished), UNFINISHED_MAX)))

    def _read_new_lines(self) -> None:
        if not self._history.exists():
            return
        with self._history.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            with suppress(msgspec.DecodeError):
                self._add(*msgspec.json.decode(line, type=Line))

    def _add(self, step: str, storage_key: str, count: int) -> None:
        state = self._objects.setdefault(storage_key, ObjectState())
        state.state = step
        if step == "kept":
            state.synced_bytes = count
        elif step in ("finishing", "finished"):
            state.size = count
        self.acked += step in ("kept", "finished", "deleted")

    def _broken(self, text: str) -> Broken:
        return Broken(f"{text}\nseed {self.seed}, kill {self.kills}; the folder is kept in {self.folder}")
