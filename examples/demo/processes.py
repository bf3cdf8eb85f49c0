"""The processes of the demo, and the file that records them, so that exactly these processes are stopped."""

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
    """The demo cannot continue. The message contains the reason."""


class StartedProcess(msgspec.Struct, frozen=True):
    """A process that the demo started. PIDs are reused, but a PID and a start time together are unique."""

    name: str
    pid: int
    start_time: str


class DemoRecord(msgspec.Struct, frozen=True):
    """The processes of a demo, and the URL of its server."""

    url: str
    processes: list[StartedProcess]


def start_time_of(pid: int) -> str | None:
    """Return the boot ID of the machine and the start time of a process, or `None` if the process has ended."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else f"{boot} {fields[19]}"


class DemoProcesses:
    """The processes that this demo started. A file in the data folder records them, so that they can be stopped."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.url = ""
        self._started: list[StartedProcess] = []
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def pids(self) -> list[int]:
        """The PIDs of the processes, that of the server first."""
        return [process.pid for process in self._started]

    def start(self, name: str, *arguments: str, cwd: Path, **environment: str) -> subprocess.Popen[bytes]:
        """Start an `ingot` command. Its output goes to a file, so that it keeps no terminal and no pipe open."""
        with open(self.data / f"{name}.log", "ab") as log:
            log.truncate(0)
            process = subprocess.Popen(
                [sys.executable, "-m", "ingot", *arguments],
                cwd=cwd,
                env=clean_environment() | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C must reach only the demo, which stops the processes in order.
            )
        self._children[process.pid] = process
        self._started.append(StartedProcess(name, process.pid, start_time_of(process.pid) or ""))
        self._write()
        return process

    def serve(self, port: int, *options: str, **environment: str) -> None:
        """Start a server at this port, or at the next free one. Raises `DemoFailed`."""
        for candidate in range(port, min(port + PORTS, 65_536)):
            process = self.start(
                SERVER,
                "serve",
                "--data",
                str(self.data),
                "--port",
                str(candidate),
                *options,
                cwd=self.data,
                **environment,
            )
            url = self._wait_for_url(process)
            if url is not None:
                self.url = url
                self._write()
                return
            self.forget(process.pid)
            if "cannot listen" not in self.log(SERVER):
                raise DemoFailed(f"the server did not start:\n{self.log(SERVER)}")
        raise DemoFailed(f"none of the {PORTS} ports from {port} on is free")

    def _wait_for_url(self, process: subprocess.Popen[bytes]) -> str | None:
        """Wait until the server logs its URL, and return it. Return `None` if the server has ended."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            for line in self.log(SERVER).splitlines():
                with suppress(msgspec.DecodeError):
                    event = msgspec.json.decode(line)
                    if isinstance(event, dict) and event.get("message") == "serving":
                        return str(event["url"])
            if process.poll() is not None:
                return None
            time.sleep(0.05)
        raise DemoFailed(f"the server did not start within {START_SECONDS_MAX:g} seconds:\n{self.log(SERVER)}")

    def log(self, name: str) -> str:
        """Return the output of a process."""
        return (self.data / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def kill(self, pid: int) -> None:
        """Kill one of the processes, as in a crash."""
        self._children[pid].kill()
        self._children[pid].wait()
        self.forget(pid)

    def forget(self, pid: int) -> None:
        """Remove a process that has ended from the record."""
        self._started = [process for process in self._started if process.pid != pid]
        self._write()

    def find_ended(self) -> str | None:
        """Return the name of a process that has ended unexpectedly, or `None`."""
        return next((process.name for process in self._started if self._children[process.pid].poll() is not None), None)

    def stop(self) -> None:
        """Stop the processes of this demo."""
        stop_processes(self._started)
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
    """Return the environment without settings of Ingot."""
    return {name: value for name, value in os.environ.items() if not name.startswith("INGOT_")}


def read_record(data: Path) -> DemoRecord | None:
    """Return the record of the demo in this folder, or `None`."""
    try:
        return msgspec.json.decode((data / RECORD).read_bytes(), type=DemoRecord)
    except (OSError, msgspec.DecodeError):
        return None


def stop_recorded(data: Path) -> list[int]:
    """Stop the processes of the demo in this folder, and return the PIDs of those that were running."""
    record = read_record(data)
    stopped_pids = stop_processes(record.processes) if record is not None else []
    (data / RECORD).unlink(missing_ok=True)
    return stopped_pids


def stop_processes(processes: Iterable[StartedProcess]) -> list[int]:
    """Stop these processes, workers before their server, and return the PIDs of those that were running."""
    workers = [process for process in processes if process.name != SERVER]
    servers = [process for process in processes if process.name == SERVER]
    return [*_stop_together(workers), *_stop_together(servers)]


def _stop_together(processes: list[StartedProcess]) -> list[int]:
    """Send SIGTERM to these processes, and kill those that take too long."""
    running = [process for process in processes if _send_signal(process, signal.SIGTERM)]
    deadline = time.monotonic() + TERM_SECONDS_MAX
    for process in running:
        if not _wait_for_end(process, deadline - time.monotonic()):
            _send_signal(process, signal.SIGKILL)
            _wait_for_end(process, TERM_SECONDS_MAX)
    return [process.pid for process in running]


def _send_signal(process: StartedProcess, number: signal.Signals) -> bool:
    """Send a signal to exactly this process. Return whether it was running."""
    with _open_process(process) as descriptor:
        if descriptor is None:
            return False
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, number)
        return True


def _wait_for_end(process: StartedProcess, seconds: float) -> bool:
    """Wait until a process has ended, and return whether it has."""
    with _open_process(process) as descriptor:
        return descriptor is None or bool(select.select([descriptor], [], [], max(0.0, seconds))[0])


@contextmanager
def _open_process(process: StartedProcess) -> Iterator[int | None]:
    """Open a descriptor of exactly this process. It is `None` if the process has ended."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield descriptor if start_time_of(process.pid) == process.start_time else None
    finally:
        os.close(descriptor)
