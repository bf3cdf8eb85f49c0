"""In the template: it imports a handler once, and becomes two whenever a job wants a process of its own.

It runs nothing itself, reads nothing of any job, and has no secrets. It knows every process that it made: it tells the
worker how each ended, ends those that are to, with all that they started, and all of them when the worker is gone.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import spawn
from typing import Final

import msgspec

from ingot.kernel.structs import prepare_structs
from ingot.worker.isolation import child
from ingot.worker.isolation.linux import adopt_orphans, not_to_be_copied, strays, user_of, watch
from ingot.worker.isolation.words import KILL_SECONDS, NUMBER, Beginning, Hello
from ingot.worker.results import error_text

WORD_BYTES: Final = 16
ENDED_UNTOLD: Final = 70  # How a process ends that could not even begin.
HELD_BACK: Final = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}  # Who tells all to go means the worker: it tells us.


def main() -> None:
    """Begin as standard input says."""
    beginning = msgspec.json.decode(sys.stdin.buffer.read(), type=Beginning)
    _leave_stdin()
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    control = socket.socket(fileno=beginning.control)
    control.set_inheritable(False)
    hello = _prepared(beginning)
    control.send(msgspec.json.encode(hello))
    if hello == Hello():
        _Template(control, beginning).run()


def _leave_stdin() -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - it is open as long as the process is


def _prepared(beginning: Beginning) -> Hello:
    """Import all that processes need, once."""
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    try:
        child.prepare()
        if beginning.shared:
            _find(beginning)
    except BaseException as error:
        traceback.print_exc()
        return Hello(failed=error_text(error))
    prepare_structs()
    sys.stdout.flush()
    sys.stderr.flush()
    gc.collect()
    gc.freeze()  # What is there is not looked at again: looking would copy it.
    return Hello(not_shared=not_to_be_copied({0, 1, 2, beginning.control}) if beginning.shared else None)


def _find(beginning: Beginning) -> None:
    """Import the handler, where the worker has it from."""
    spawn.prepare(beginning.prepares)
    pickle.loads(beginning.function)


class _Process:
    """A process of a job, the first of its group, and the line on which the worker speaks of it."""

    def __init__(self, pid: int, line: socket.socket) -> None:
        self.pid = pid
        self.line = line
        self.until: float | None = None  # Then it is killed, or when it has ended, what is left of it is given up.
        self.exit_code: int | None = None

    @property
    def is_gone(self) -> bool:
        """Whether it has ended, and all of its group."""
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return self.exit_code is not None
        except PermissionError:
            return False
        return False

    def signal(self, number: signal.Signals) -> None:
        """Signal the group, or it alone before it is the first of one. Once buried, its number may be another's."""
        if self.exit_code is not None:
            return
        with suppress(ProcessLookupError, PermissionError):
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                os.kill(self.pid, number)


class _Template:
    """Makes processes, and sees them to their end, as the worker says."""

    def __init__(self, control: socket.socket, beginning: Beginning) -> None:
        self._control = control
        self._beginning = beginning
        self._processes: dict[int, _Process] = {}
        self._poll = select.poll()
        self._calls: dict[int, Callable[[], None]] = {}
        self._woken, self._waking = socket.socketpair()
        self._worker = watch(beginning.worker)  # A copy of it may hold its end of the socket.
        for found in (self._woken, self._waking):
            found.setblocking(False)
        adopt_orphans()
        signal.set_wakeup_fd(self._waking.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._listen(control.fileno(), self._begin)
        self._listen(self._woken.fileno(), self._bury)
        if self._worker is not None:
            self._listen(self._worker, self._end)

    def run(self) -> None:
        """Do so until the worker is gone."""
        while True:
            for descriptor, _ in self._poll.poll(self._pause()):
                if (call := self._calls.get(descriptor)) is not None:
                    call()
            self._hurry()

    def _listen(self, descriptor: int, call: Callable[[], None]) -> None:
        self._poll.register(descriptor, select.POLLIN)
        self._calls[descriptor] = call

    def _leave(self, descriptor: int) -> None:
        if self._calls.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    # -- a process ------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Make a process, with what it talks and prints to, and the line on which we are told of it."""
        order, handed, _, _ = socket.recv_fds(self._control, WORD_BYTES, 3)
        if not order:
            self._end()
        talk, line = socket.socket(fileno=handed[0]), socket.socket(fileno=handed[1])
        printing = handed[2]
        for descriptor in handed:
            os.set_inheritable(descriptor, False)
        template = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            _tell(line, -(error.errno or 1))
            line.close()
        else:
            if pid == 0:
                self._become(talk, line, printing, template)
            self._processes[pid] = _Process(pid, line)
            self._listen(line.fileno(), lambda: self._heed(self._processes[pid]))
            _tell(line, pid)
        talk.close()
        os.close(printing)

    def _become(self, talk: socket.socket, line: socket.socket, printing: int, template: int) -> None:
        """Be the process of a job from now on, with nothing of the template's or of other jobs'."""
        code = ENDED_UNTOLD
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            lines = [one.line for one in self._processes.values()]
            for ours in (self._control, self._woken, self._waking, line, *lines):
                ours.close()
            if self._worker is not None:
                os.close(self._worker)
            os.dup2(printing, 1)
            os.dup2(printing, 2)
            os.close(printing)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
            code = child.work(talk, template, self._find)
        finally:
            os._exit(code)

    def _find(self) -> None:
        if not self._beginning.shared:
            _find(self._beginning)

    def _heed(self, process: _Process) -> None:
        """What the worker says of a process: to end it, and when it says no more, to kill it."""
        try:
            said = process.line.recv(WORD_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:  # It was said to another, who had this number before.
            return
        except OSError:
            said = b""
        if said and process.exit_code is None and process.until is None:
            process.signal(signal.SIGTERM)
            process.until = time.monotonic() + KILL_SECONDS
        elif not said:
            self._leave(process.line.fileno())
            process.signal(signal.SIGKILL)

    # -- its end --------------------------------------------------------------------------------------------

    def _bury(self) -> None:
        """Take note of ends. What a process leaves running ends with it, while its number is still its own."""
        with suppress(BlockingIOError):
            self._woken.recv(4096)
        with suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                process = self._processes.get(ended.si_pid)
                if process is not None:
                    process.signal(signal.SIGKILL)
                _, status = os.waitpid(ended.si_pid, 0)
                if process is not None:
                    process.exit_code = os.waitstatus_to_exitcode(status)
                    process.until = time.monotonic() + KILL_SECONDS
        self._end_strays()
        for process in [one for one in self._processes.values() if one.exit_code is not None and one.is_gone]:
            self._forget(process)

    def _end_strays(self) -> None:
        """Kill what left the group of its job, and is ours since its parent ended: it has the user of the job."""
        live = {user_of(process.pid) for process in self._processes.values() if process.exit_code is None}
        for pid in strays(self._processes, live):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _hurry(self) -> None:
        """Kill those whose time is over; of those that have ended, do not wait for the rest any longer."""
        now = time.monotonic()
        for process in [one for one in self._processes.values() if one.until is not None and one.until <= now]:
            if process.exit_code is not None:
                self._forget(process)
            else:
                process.until = None
                process.signal(signal.SIGKILL)

    def _pause(self) -> int | None:
        """How long there is nothing to do, in milliseconds."""
        times = [one.until for one in self._processes.values() if one.until is not None]
        return max(0, int((min(times) - time.monotonic()) * 1000) + 1) if times else None

    def _forget(self, process: _Process) -> None:
        assert process.exit_code is not None
        del self._processes[process.pid]
        self._leave(process.line.fileno())
        _tell(process.line, process.exit_code)
        process.line.close()

    def _end(self) -> None:
        """The worker is gone: nothing of it is left."""
        for process in self._processes.values():
            process.signal(signal.SIGKILL)
        os._exit(0)


def _tell(line: socket.socket, number: int) -> None:
    with suppress(OSError):  # Nobody wants to know any more.
        line.sendall(NUMBER.pack(number))
