"""The processes of the demo, and the file that says which they are, so that they and no others are ended."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

RECORD: Final = "demo.json"
TERM_SECONDS_MAX: Final = 15.0
START_SECONDS_MAX: Final = 30.0
PORTS: Final = 100
SERVER: Final = "server"


class DemoFailed(Exception):
    """The demo cannot go on; the message says why."""


class StartedProcess(msgspec.Struct, frozen=True):
    """A process: its number, and when the kernel began it. Numbers are given again, the two together are not."""

    name: str
    pid: int
    born: str


class DemoRecord(msgspec.Struct, frozen=True):
    """What a demo has started, and where its server is."""

    url: str
    processes: list[StartedProcess]


def born_of(pid: int) -> str | None:
    """When a process began, in this run of the kernel; `None` when it has ended."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else f"{boot} {fields[19]}"


class DemoProcesses:
    """What this demo has started. The record in the data folder says the same, for who ends them later."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.url = ""
        self._started: list[StartedProcess] = []
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def pids(self) -> list[int]:
        """The processes that should be there, the server's first."""
        return [one.pid for one in self._started]

    def start(self, name: str, *words: str, cwd: Path, **environment: str) -> subprocess.Popen[bytes]:
        """Start a command of ours. Its words go to a file; neither the terminal nor a pipe is held open by it."""
        with open(self.data / f"{name}.log", "ab") as log:
            log.truncate(0)
            process = subprocess.Popen(
                [sys.executable, "-m", "ingot", *words],
                cwd=cwd,
                env=clean_environment() | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which ends them in their order.
            )
        self._children[process.pid] = process
        self._started.append(StartedProcess(name, process.pid, born_of(process.pid) or ""))
        self._write()
        return process

    def serve(self, port: int, *words: str, **environment: str) -> None:
        """Start a server at this port, or at the next that is free. Raises `DemoFailed`."""
        for candidate in range(port, min(port + PORTS, 65_536)):
            process = self.start(
                SERVER,
                "serve",
                "--data",
                str(self.data),
                "--port",
                str(candidate),
                *words,
                cwd=self.data,
                **environment,
            )
            url = self._serving(process)
            if url is not None:
                self.url = url
                self._write()
                return
            self.forget(process.pid)
            if "cannot listen" not in self.log(SERVER):
                raise DemoFailed(f"the server did not start:\n{self.log(SERVER)}")
        raise DemoFailed(f"none of the {PORTS} ports from {port} on is free")

    def _serving(self, process: subprocess.Popen[bytes]) -> str | None:
        """Where it serves, once it says so; `None` when it has ended instead."""
        until = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < until:
            for line in self.log(SERVER).splitlines():
                with suppress(msgspec.DecodeError):
                    said = msgspec.json.decode(line)
                    if isinstance(said, dict) and said.get("message") == "serving":
                        return str(said["url"])
            if process.poll() is not None:
                return None
            time.sleep(0.05)
        raise DemoFailed(f"the server did not start within {START_SECONDS_MAX:g} seconds:\n{self.log(SERVER)}")

    def log(self, name: str) -> str:
        """What a process has said."""
        return (self.data / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def kill(self, pid: int) -> None:
        """End one of ours at once, as a fault would."""
        self._children[pid].kill()
        self._children[pid].wait()
        self.forget(pid)

    def forget(self, pid: int) -> None:
        """One of ours has ended."""
        self._started = [one for one in self._started if one.pid != pid]
        self._write()

    def ended(self) -> str | None:
        """The name of a process that has ended by itself, if one has."""
        return next((one.name for one in self._started if self._children[one.pid].poll() is not None), None)

    def stop(self) -> None:
        """End what this demo has started, and no other's."""
        end(self._started)
        for child in self._children.values():
            child.wait()
        if (record := read_record(self.data)) is not None and record.processes == self._started:
            (self.data / RECORD).unlink(missing_ok=True)

    def _write(self) -> None:
        path = self.data / RECORD
        new = path.with_suffix(".new")
        new.write_bytes(msgspec.json.format(msgspec.json.encode(DemoRecord(self.url, self._started))))
        new.replace(path)


def clean_environment() -> dict[str, str]:
    """The environment without the settings of another server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("INGOT_")}


def read_record(data: Path) -> DemoRecord | None:
    """What the demo of this folder has started, if there is one."""
    try:
        return msgspec.json.decode((data / RECORD).read_bytes(), type=DemoRecord)
    except (OSError, msgspec.DecodeError):
        return None


def stop_recorded(data: Path) -> list[int]:
    """End what the demo of this folder left running, and answer which processes that was."""
    record = read_record(data)
    ended = end(record.processes) if record is not None else []
    (data / RECORD).unlink(missing_ok=True)
    return ended


def end(processes: Iterable[StartedProcess]) -> list[int]:
    """End these processes, workers before their server, and answer which were there."""
    workers = [one for one in processes if one.name != SERVER]
    servers = [one for one in processes if one.name == SERVER]
    return [*_end_together(workers), *_end_together(servers)]


def _end_together(processes: list[StartedProcess]) -> list[int]:
    """Ask them to end, and make them when that takes too long."""
    asked = [one for one in processes if _send(one, signal.SIGTERM)]
    until = time.monotonic() + TERM_SECONDS_MAX
    for one in asked:
        if not _wait(one, until - time.monotonic()):
            _send(one, signal.SIGKILL)
            _wait(one, TERM_SECONDS_MAX)
    return [one.pid for one in asked]


def _send(one: StartedProcess, number: signal.Signals) -> bool:
    """Send a signal to this very process; whether it is there."""
    with _held(one) as descriptor:
        if descriptor is None:
            return False
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, number)
        return True


def _wait(one: StartedProcess, seconds: float) -> bool:
    """Wait until it has ended; whether it has."""
    with _held(one) as descriptor:
        return descriptor is None or bool(select.select([descriptor], [], [], max(0.0, seconds))[0])


@contextmanager
def _held(one: StartedProcess) -> Iterator[int | None]:
    """A handle on the process, which no other process can come under; `None` when it has ended."""
    try:
        descriptor = os.pidfd_open(one.pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield descriptor if born_of(one.pid) == one.born else None
    finally:
        os.close(descriptor)
