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

from ingot.kernel.msgspec_warmup import prepare_structs
from ingot.worker.isolation import child
from ingot.worker.isolation.linux import adopt_orphans, fork_obstacle, job_uid, open_pidfd, stray_children
from ingot.worker.isolation.messages import KILL_SECONDS, NUMBER_FORMAT, TemplateStart, TemplateStatus
from ingot.worker.result_encoding import describe_error

CONTROL_READ_BYTES: Final = 16
START_FAILED_EXIT_CODE: Final = 70  # How a process ends that could not even begin.
BLOCKED_SIGNALS: Final = {
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
}  # Who tells all to go means the worker: it tells us.


def main() -> None:
    """Begin as standard input says."""
    beginning = msgspec.json.decode(sys.stdin.buffer.read(), type=TemplateStart)
    _detach_stdin()
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
    control = socket.socket(fileno=beginning.control)
    control.set_inheritable(False)
    hello = _preload_handler(beginning)
    control.send(msgspec.json.encode(hello))
    if hello == TemplateStatus():
        _TemplateServer(control, beginning).run()


def _detach_stdin() -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - it is open as long as the process is


def _preload_handler(beginning: TemplateStart) -> TemplateStatus:
    """Import all that processes need, once."""
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    try:
        child.preload()
        if beginning.shared:
            _import_handler(beginning)
    except BaseException as error:
        traceback.print_exc()
        return TemplateStatus(failed=describe_error(error))
    prepare_structs()
    sys.stdout.flush()
    sys.stderr.flush()
    gc.collect()
    gc.freeze()  # What is there is not looked at again: looking would copy it.
    return TemplateStatus(not_shared=fork_obstacle({0, 1, 2, beginning.control}) if beginning.shared else None)


def _import_handler(beginning: TemplateStart) -> None:
    """Import the handler, where the worker has it from."""
    spawn.prepare(beginning.prepares)
    pickle.loads(beginning.function)


class _ChildProcess:
    """A process of a job, the first of its group, and the line on which the worker speaks of it."""

    def __init__(self, pid: int, line: socket.socket) -> None:
        self.pid = pid
        self.control_socket = line
        self.deadline: float | None = None  # Then it is killed, or when it has ended, what is left of it is given up.
        self.exit_code: int | None = None

    @property
    def has_group_ended(self) -> bool:
        """Whether it has ended, and all of its group."""
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return self.exit_code is not None
        except PermissionError:
            return False
        return False

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the group, or it alone before it is the first of one. Once buried, its number may be another's."""
        if self.exit_code is not None:
            return
        with suppress(ProcessLookupError, PermissionError):
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                os.kill(self.pid, number)


class _TemplateServer:
    """Makes processes, and sees them to their end, as the worker says."""

    def __init__(self, control: socket.socket, beginning: TemplateStart) -> None:
        self._template_socket = control
        self._start_message = beginning
        self._processes: dict[int, _ChildProcess] = {}
        self._poll = select.poll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._wakeup_reader, self._wakeup_writer = socket.socketpair()
        self._worker_pidfd = open_pidfd(beginning.worker)  # A copy of it may hold its end of the socket.
        for found in (self._wakeup_reader, self._wakeup_writer):
            found.setblocking(False)
        adopt_orphans()
        signal.set_wakeup_fd(self._wakeup_writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._register(control.fileno(), self._fork_process)
        self._register(self._wakeup_reader.fileno(), self._reap)
        if self._worker_pidfd is not None:
            self._register(self._worker_pidfd, self._kill_all_and_exit)

    def run(self) -> None:
        """Do so until the worker is gone."""
        while True:
            for descriptor, _ in self._poll.poll(self._poll_milliseconds()):
                if (call := self._callbacks.get(descriptor)) is not None:
                    call()
            self._enforce_deadlines()

    def _register(self, descriptor: int, call: Callable[[], None]) -> None:
        self._poll.register(descriptor, select.POLLIN)
        self._callbacks[descriptor] = call

    def _unregister(self, descriptor: int) -> None:
        if self._callbacks.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    # -- a process ------------------------------------------------------------------------------------------

    def _fork_process(self) -> None:
        """Make a process, with what it talks and prints to, and the line on which we are told of it."""
        order, handed, _, _ = socket.recv_fds(self._template_socket, CONTROL_READ_BYTES, 3)
        if not order:
            self._kill_all_and_exit()
        talk, line = socket.socket(fileno=handed[0]), socket.socket(fileno=handed[1])
        printing = handed[2]
        for descriptor in handed:
            os.set_inheritable(descriptor, False)
        template = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            _send_number(line, -(error.errno or 1))
            line.close()
        else:
            if pid == 0:
                self._run_child(talk, line, printing, template)
            self._processes[pid] = _ChildProcess(pid, line)
            self._register(line.fileno(), lambda: self._handle_control(self._processes[pid]))
            _send_number(line, pid)
        talk.close()
        os.close(printing)

    def _run_child(self, talk: socket.socket, line: socket.socket, printing: int, template: int) -> None:
        """Be the process of a job from now on, with nothing of the template's or of other jobs'."""
        code = START_FAILED_EXIT_CODE
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            lines = [one.control_socket for one in self._processes.values()]
            for ours in (self._template_socket, self._wakeup_reader, self._wakeup_writer, line, *lines):
                ours.close()
            if self._worker_pidfd is not None:
                os.close(self._worker_pidfd)
            os.dup2(printing, 1)
            os.dup2(printing, 2)
            os.close(printing)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED_SIGNALS)
            code = child.run_task(talk, template, self._import_unshared_handler)
        finally:
            os._exit(code)

    def _import_unshared_handler(self) -> None:
        if not self._start_message.shared:
            _import_handler(self._start_message)

    def _handle_control(self, process: _ChildProcess) -> None:
        """What the worker says of a process: to end it, and when it says no more, to kill it."""
        try:
            said = process.control_socket.recv(CONTROL_READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:  # It was said to another, who had this number before.
            return
        except OSError:
            said = b""
        if said and process.exit_code is None and process.deadline is None:
            process.send_signal(signal.SIGTERM)
            process.deadline = time.monotonic() + KILL_SECONDS
        elif not said:
            self._unregister(process.control_socket.fileno())
            process.send_signal(signal.SIGKILL)

    # -- its end --------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        """Take note of ends. What a process leaves running ends with it, while its number is still its own."""
        with suppress(BlockingIOError):
            self._wakeup_reader.recv(4096)
        with suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                process = self._processes.get(ended.si_pid)
                if process is not None:
                    process.send_signal(signal.SIGKILL)
                _, status = os.waitpid(ended.si_pid, 0)
                if process is not None:
                    process.exit_code = os.waitstatus_to_exitcode(status)
                    process.deadline = time.monotonic() + KILL_SECONDS
        self._kill_strays()
        for process in [one for one in self._processes.values() if one.exit_code is not None and one.has_group_ended]:
            self._report_exit(process)

    def _kill_strays(self) -> None:
        """Kill what left the group of its job, and is ours since its parent ended: it has the user of the job."""
        live = {job_uid(process.pid) for process in self._processes.values() if process.exit_code is None}
        for pid in stray_children(self._processes, live):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _enforce_deadlines(self) -> None:
        """Kill those whose time is over; of those that have ended, do not wait for the rest any longer."""
        now = time.monotonic()
        for process in [one for one in self._processes.values() if one.deadline is not None and one.deadline <= now]:
            if process.exit_code is not None:
                self._report_exit(process)
            else:
                process.deadline = None
                process.send_signal(signal.SIGKILL)

    def _poll_milliseconds(self) -> int | None:
        """How long there is nothing to do, in milliseconds."""
        times = [one.deadline for one in self._processes.values() if one.deadline is not None]
        return max(0, int((min(times) - time.monotonic()) * 1000) + 1) if times else None

    def _report_exit(self, process: _ChildProcess) -> None:
        assert process.exit_code is not None
        del self._processes[process.pid]
        self._unregister(process.control_socket.fileno())
        _send_number(process.control_socket, process.exit_code)
        process.control_socket.close()

    def _kill_all_and_exit(self) -> None:
        """The worker is gone: nothing of it is left."""
        for process in self._processes.values():
            process.send_signal(signal.SIGKILL)
        os._exit(0)


def _send_number(line: socket.socket, number: int) -> None:
    with suppress(OSError):  # Nobody wants to know any more.
        line.sendall(NUMBER_FORMAT.pack(number))
