"""The template process: imports a handler once, and forks a child for each job.

It runs no handler itself, sees no data of jobs, and has no secrets. It reports to the worker how each child ended,
terminates children on request together with everything that they started, and kills all of them when the worker ends.
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
START_FAILED_EXIT_CODE: Final = 70  # The child failed before it could run its task.
# A signal to the whole process group is meant for the worker, which stops its children itself.
BLOCKED_SIGNALS: Final = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def main() -> None:
    """Start the template with the parameters from standard input."""
    start_message = msgspec.json.decode(sys.stdin.buffer.read(), type=TemplateStart)
    _detach_stdin()
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
    template_socket = socket.socket(fileno=start_message.socket_descriptor)
    template_socket.set_inheritable(False)
    status = _preload_handler(start_message)
    template_socket.send(msgspec.json.encode(status))
    if status == TemplateStatus():
        _TemplateServer(template_socket, start_message).run()


def _detach_stdin() -> None:
    null_descriptor = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null_descriptor, 0)
    os.close(null_descriptor)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - stays open as long as the process runs


def _preload_handler(start_message: TemplateStart) -> TemplateStatus:
    """Import everything that children need."""
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    try:
        child.preload()
        if start_message.share_import:
            _import_handler(start_message)
    except BaseException as error:
        traceback.print_exc()
        return TemplateStatus(import_error=describe_error(error))
    prepare_structs()
    sys.stdout.flush()
    sys.stderr.flush()
    gc.collect()
    gc.freeze()  # The garbage collector of a child would otherwise touch these objects and so copy their memory.
    if not start_message.share_import:
        return TemplateStatus()
    return TemplateStatus(not_shared_reason=fork_obstacle({0, 1, 2, start_message.socket_descriptor}))


def _import_handler(start_message: TemplateStart) -> None:
    """Import the handler with the same paths as in the worker."""
    spawn.prepare(start_message.preparation_data)
    pickle.loads(start_message.function)


class _ChildProcess:
    """A child, which leads its own process group, and the socket on which the worker controls it."""

    def __init__(self, pid: int, control_socket: socket.socket) -> None:
        self.pid = pid
        self.control_socket = control_socket
        self.deadline: float | None = None  # When to kill it; after its end, when to stop waiting for its group.
        self.exit_code: int | None = None

    @property
    def has_group_ended(self) -> bool:
        """Whether the process and its whole group have ended."""
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return self.exit_code is not None
        except PermissionError:
            return False
        return False

    def send_signal(self, number: signal.Signals) -> None:
        """Signal the group, or only the process before it has created its group.

        Does nothing after the end, because the process ID may belong to another process by then.
        """
        if self.exit_code is not None:
            return
        with suppress(ProcessLookupError, PermissionError):
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                os.kill(self.pid, number)


class _TemplateServer:
    """Forks children and terminates them on request of the worker."""

    def __init__(self, template_socket: socket.socket, start_message: TemplateStart) -> None:
        self._template_socket = template_socket
        self._start_message = start_message
        self._processes: dict[int, _ChildProcess] = {}
        self._poll = select.poll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._wakeup_reader, self._wakeup_writer = socket.socketpair()
        # Needed because a process that the worker forked may keep the worker's end of the socket open.
        self._worker_pidfd = open_pidfd(start_message.worker_pid)
        for wakeup_socket in (self._wakeup_reader, self._wakeup_writer):
            wakeup_socket.setblocking(False)
        adopt_orphans()
        signal.set_wakeup_fd(self._wakeup_writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._register(template_socket.fileno(), self._fork_process)
        self._register(self._wakeup_reader.fileno(), self._reap)
        if self._worker_pidfd is not None:
            self._register(self._worker_pidfd, self._kill_all_and_exit)

    def run(self) -> None:
        """Serve requests until the worker ends."""
        while True:
            for descriptor, _ in self._poll.poll(self._poll_milliseconds()):
                if (callback := self._callbacks.get(descriptor)) is not None:
                    callback()
            self._enforce_deadlines()

    def _register(self, descriptor: int, callback: Callable[[], None]) -> None:
        self._poll.register(descriptor, select.POLLIN)
        self._callbacks[descriptor] = callback

    def _unregister(self, descriptor: int) -> None:
        if self._callbacks.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    # -- children -------------------------------------------------------------------------------------------

    def _fork_process(self) -> None:
        """Fork a child with the message socket, control socket, output pipe and transfer socket of the worker."""
        request, descriptors, _, _ = socket.recv_fds(self._template_socket, CONTROL_READ_BYTES, 4)
        if not request:
            self._kill_all_and_exit()
        message_socket, control_socket = socket.socket(fileno=descriptors[0]), socket.socket(fileno=descriptors[1])
        output_descriptor, transfer_socket = descriptors[2], socket.socket(fileno=descriptors[3])
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        template_pid = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            _send_number(control_socket, -(error.errno or 1))
            control_socket.close()
        else:
            if pid == 0:
                self._run_child(message_socket, control_socket, output_descriptor, transfer_socket, template_pid)
            self._processes[pid] = _ChildProcess(pid, control_socket)
            self._register(control_socket.fileno(), lambda: self._handle_control(self._processes[pid]))
            _send_number(control_socket, pid)
        message_socket.close()
        transfer_socket.close()
        os.close(output_descriptor)

    def _run_child(
        self,
        message_socket: socket.socket,
        control_socket: socket.socket,
        output_descriptor: int,
        transfer_socket: socket.socket,
        template_pid: int,
    ) -> None:
        """Continue as the child: close everything that belongs to the template or to other jobs, and run the task."""
        code = START_FAILED_EXIT_CODE
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control_sockets = [process.control_socket for process in self._processes.values()]
            for inherited in (
                self._template_socket,
                self._wakeup_reader,
                self._wakeup_writer,
                control_socket,
                *control_sockets,
            ):
                inherited.close()
            if self._worker_pidfd is not None:
                os.close(self._worker_pidfd)
            os.dup2(output_descriptor, 1)
            os.dup2(output_descriptor, 2)
            os.close(output_descriptor)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED_SIGNALS)
            code = child.run_task(message_socket, transfer_socket, template_pid, self._import_unshared_handler)
        finally:
            os._exit(code)

    def _import_unshared_handler(self) -> None:
        if not self._start_message.share_import:
            _import_handler(self._start_message)

    def _handle_control(self, process: _ChildProcess) -> None:
        """Handle a control message: any data means to terminate the process, a closed socket to kill it."""
        try:
            data = process.control_socket.recv(CONTROL_READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:  # The event was for a closed socket that had the same descriptor number.
            return
        except OSError:
            data = b""
        if data and process.exit_code is None and process.deadline is None:
            process.send_signal(signal.SIGTERM)
            process.deadline = time.monotonic() + KILL_SECONDS
        elif not data:
            self._unregister(process.control_socket.fileno())
            process.send_signal(signal.SIGKILL)

    # -- ends of children -----------------------------------------------------------------------------------

    def _reap(self) -> None:
        """Reap children that have ended.

        The group of a child is killed before the child is reaped, while its process ID cannot be reused.
        """
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
        for process in [
            process for process in self._processes.values() if process.exit_code is not None and process.has_group_ended
        ]:
            self._report_exit(process)

    def _kill_strays(self) -> None:
        """Kill processes that left the group of their job. They became our children and run as the user of the job."""
        live_uids = {job_uid(process.pid) for process in self._processes.values() if process.exit_code is None}
        for pid in stray_children(self._processes, live_uids):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _enforce_deadlines(self) -> None:
        """Kill processes whose deadline has passed. For those that have ended, stop waiting for their group."""
        now = time.monotonic()
        for process in [
            process for process in self._processes.values() if process.deadline is not None and process.deadline <= now
        ]:
            if process.exit_code is not None:
                self._report_exit(process)
            else:
                process.deadline = None
                process.send_signal(signal.SIGKILL)

    def _poll_milliseconds(self) -> int | None:
        """Return the time until the next deadline in milliseconds."""
        deadlines = [process.deadline for process in self._processes.values() if process.deadline is not None]
        return max(0, int((min(deadlines) - time.monotonic()) * 1000) + 1) if deadlines else None

    def _report_exit(self, process: _ChildProcess) -> None:
        assert process.exit_code is not None
        del self._processes[process.pid]
        self._unregister(process.control_socket.fileno())
        _send_number(process.control_socket, process.exit_code)
        process.control_socket.close()

    def _kill_all_and_exit(self) -> None:
        """Kill all children and exit, because the worker has ended."""
        for process in self._processes.values():
            process.send_signal(signal.SIGKILL)
        os._exit(0)


def _send_number(control_socket: socket.socket, number: int) -> None:
    with suppress(OSError):  # The worker has closed its end.
        control_socket.sendall(NUMBER_FORMAT.pack(number))
