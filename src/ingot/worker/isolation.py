"""A handler in a process of its own: limited, without rights it does not need, and ended whole when it is to stop."""

from __future__ import annotations

import multiprocessing
import os
import pwd
import resource
import signal
import sys
import threading
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Final

import msgspec

from ingot.jobs.model import Job
from ingot.worker.app import Function
from ingot.worker.job import NoRetry, Snoozed, WorkerJob
from ingot.worker.run import Run

MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024
READ_BYTES: Final = 64 * 1024
KILL_SECONDS: Final = 5.0  # That the processes have after TERM.
UNPRIVILEGED: Final = "nobody"
_spawn = multiprocessing.get_context("spawn")


class Said(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the process says of its job: how far it is, or how it ended. It is text: nothing in it is run."""

    percent: float | None = None
    stage: str = ""
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: str | None = None
    retry: bool = True
    snooze: float | None = None


class Ended(Exception):
    """The process ended without a word."""

    def __init__(self, exit_code: int) -> None:
        self.exit_code = exit_code
        name = signal.Signals(-exit_code).name if exit_code < 0 else ""
        why = f"was ended by {name}" if name else f"ended with {exit_code}"
        memory = ", as it is when the memory is used up" if name in ("SIGKILL", "SIGSEGV", "SIGBUS") else ""
        super().__init__(f"the process of the handler {why}{memory}")


class Failed(Exception):
    """The handler raised, in its process."""


def run_isolated(run: Run) -> Any:
    """Run the handler of a job in a process of its own, and answer its result as JSON. Called in a thread."""
    ours, theirs = _spawn.Pipe(duplex=False)
    reading, writing = os.pipe()
    process = _spawn.Process(
        target=_work,
        args=(theirs, _Descriptor(writing), run.handler.function, msgspec.json.encode(run.job.data), _limits(run)),
        name=f"ingot-{run.job.type}",
        daemon=True,
    )
    process.start()
    theirs.close()
    os.close(writing)
    printed = threading.Thread(target=_read, args=(reading, run.job), daemon=True)
    printed.start()
    run.on_stop = lambda: _stop(process.pid or 0)
    if run.job.canceled:
        run.on_stop()
    try:
        said = _listen(ours, run.job)
    finally:
        process.join(KILL_SECONDS)
        _kill(process.pid or 0)  # What it left running ends with it.
        process.join()
        printed.join(KILL_SECONDS)
        ours.close()
    return _made_of(said, process.exitcode or 0)


def _made_of(said: Said | None, exit_code: int) -> Any:
    if said is None:
        raise Ended(exit_code)
    if said.snooze is not None:
        raise Snoozed(said.snooze)
    if said.error is not None:
        raise (Failed if said.retry else NoRetry)(said.error)
    return said.result


def _listen(ours: Connection, job: WorkerJob) -> Said | None:
    """Hear the process out; what it says last is how it ended, and nothing when it just ended."""
    while True:
        try:
            said = msgspec.json.decode(ours.recv_bytes(MESSAGE_BYTES_MAX), type=Said)
        except (EOFError, OSError, msgspec.DecodeError):
            return None
        if said.percent is None:
            return said
        job.progress(said.percent, said.stage)


def _read(descriptor: int, job: WorkerJob) -> None:
    """What is written, by whatever the process starts too, goes to the log."""
    with open(descriptor, encoding="utf-8", errors="replace", newline="") as stream:
        while text := stream.readline(READ_BYTES):
            job.log(text, end="")


def _limits(run: Run) -> dict[str, int]:
    limits = {"cpu": max(1, round(run.timeout_seconds) + 1)}
    if run.handler.memory_bytes is not None:
        limits["memory"] = run.handler.memory_bytes
    return limits


def _stop(pid: int) -> None:
    """Ask the processes to end, and make them after a while."""
    _signal(pid, signal.SIGTERM)
    timer = threading.Timer(KILL_SECONDS, _kill, (pid,))
    timer.daemon = True
    timer.start()


def _kill(pid: int) -> None:
    _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: signal.Signals) -> None:
    """To the process and all that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
        return
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


# -- in the process -------------------------------------------------------------------------------------------


class _Descriptor:
    """An open file that is handed over to the process."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __getstate__(self) -> Any:
        return multiprocessing.reduction.DupFd(self.descriptor)

    def __setstate__(self, handed: Any) -> None:
        self.descriptor = handed.detach()


class _IsolatedJob(WorkerJob):
    """A job that tells of itself by a pipe."""

    def __init__(self, data: Job, theirs: Connection) -> None:
        super().__init__(data)
        self._theirs = theirs

    def progress(self, percent: float, stage: str = "") -> None:
        """Tell how far it is."""
        self._theirs.send_bytes(msgspec.json.encode(Said(percent=float(percent), stage=stage)))

    def log(self, text: object, *, end: str = "\n") -> None:
        """Write to the log of this attempt."""
        sys.stdout.write(f"{text}{end}")
        sys.stdout.flush()


def _work(theirs: Connection, printing: _Descriptor, function: Function, data: bytes, limits: dict[str, int]) -> None:
    os.setsid()
    os.dup2(printing.descriptor, 1)
    os.dup2(printing.descriptor, 2)
    os.close(printing.descriptor)
    job = _IsolatedJob(msgspec.json.decode(data, type=Job), theirs)
    _give_up_rights(limits)
    try:
        said = Said(result=msgspec.Raw(msgspec.json.encode(function(job))))
    except Snoozed as snoozed:
        said = Said(snooze=snoozed.seconds)
    except NoRetry as error:
        said = Said(error=str(error) or "the handler said not to retry", retry=False)
    except Exception as error:
        traceback.print_exc()
        said = Said(error=f"{type(error).__name__}: {error}")
    theirs.send_bytes(msgspec.json.encode(said))
    theirs.close()


def _give_up_rights(limits: dict[str, int]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu"], limits["cpu"] + 1))
    if "memory" in limits:
        resource.setrlimit(resource.RLIMIT_AS, (limits["memory"], limits["memory"]))
    if os.geteuid() == 0:
        user = pwd.getpwnam(UNPRIVILEGED)
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
