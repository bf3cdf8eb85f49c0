"""The child process of an isolated job: drops privileges, runs the handler, and reports the outcome."""

from __future__ import annotations

import atexit
import os
import pickle
import pwd
import resource
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from socket import socket
from typing import Final

import msgspec

import ingot.client.synchronous.client  # noqa: F401 - preloaded for handlers: an unprivileged user may be unable to read the Python installation
from ingot.client.errors import error_from_code
from ingot.client.server_address import NoToken
from ingot.jobs.checks import LOG_CHARS_MAX
from ingot.jobs.model import Job
from ingot.worker.attempt_files import RETRY_POLICY, AttemptFiles
from ingot.worker.capture import log_to_stdout
from ingot.worker.file_requests import FileRequest
from ingot.worker.handler_errors import full_traceback, handler_stack
from ingot.worker.isolation.linux import die_with_parent, disable_new_privileges, is_mapped_uid, job_uid
from ingot.worker.isolation.messages import ChildMessage, HandlerTask, ReplyMessage, receive_message, send_message
from ingot.worker.isolation.network import block_network, network_obstacle
from ingot.worker.isolation.transfers import RelayedUrlClient
from ingot.worker.job import NoRetry, SnoozeSignal, WorkerJob, sanitize_text
from ingot.worker.result_encoding import describe_error, encode_result
from ingot.worker.signed_url_client import SignedUrlClient
from ingot.worker.sync_http_transport import ssl_context

UNPRIVILEGED_USER: Final = "nobody"
NO_TOKEN_ERROR: Final = (
    "NoToken: an isolated handler has no token, because it does not get the credentials of the worker; "
    "pass a token to the client, or do not isolate the handler"
)
PROCESSES_MAX: Final = 256  # Processes and threads of a job that has its own user.
MEMORY_RESERVE_BYTES: Final = 64 * 1024 * 1024  # Beyond the limit, so that the child can report that it was reached.


class _IsolatedJob(WorkerJob):
    """A job that sends its progress and file requests to the worker over a socket, and its log to standard output."""

    def __init__(self, data: Job, message_socket: socket, workdir: Path, http: SignedUrlClient) -> None:
        super().__init__(data)
        self._message_socket = message_socket
        self._task_workdir = workdir
        self._send_lock, self._file_request_lock = threading.Lock(), threading.Lock()
        self._task_files = AttemptFiles(data, self._send_file_request, self.workdir, self.check, http=http)

    @property
    def files(self) -> AttemptFiles:
        """Transfers the files of this attempt."""
        return self._task_files

    def workdir(self) -> Path:
        """Return the working folder that the worker created."""
        return self._task_workdir

    def progress(self, percent: float, stage: str = "") -> None:
        """Report the progress in percent and the current stage."""
        bounded_percent = min(100.0, max(0.0, float(percent)))
        self.send_message(ChildMessage(percent=bounded_percent, stage=sanitize_text(stage)))

    def send_message(self, message: ChildMessage) -> None:
        """Send a message to the worker. Thread-safe."""
        with self._send_lock:
            send_message(self._message_socket, msgspec.json.encode(message))

    def _send_file_request(self, request: FileRequest) -> bytes:
        """Let the worker send a request to the server, because this process has no credential."""
        with self._file_request_lock:
            self.send_message(ChildMessage(file_request=request))
            reply = msgspec.json.decode(receive_message(self._message_socket), type=ReplyMessage)
        if reply.code is not None:
            raise error_from_code(reply.code, reply.detail, reply.hint)
        return bytes(reply.response)

    def log(self, text: object, *, end: str = "\n") -> None:
        """Write to the log of this attempt."""
        sys.stdout.write(f"{text}{end}")
        sys.stdout.flush()


def run_task(
    message_socket: socket, transfer_socket: socket, template_pid: int, import_handler: Callable[[], None]
) -> int:
    """Receive a task, run it, and return the exit code for this process.

    `import_handler` is called first. The process is killed when its parent, the template, ends.
    """
    try:
        import_handler()
        _run_handler(message_socket, transfer_socket, template_pid)
        code = 0
    except SystemExit as error:
        code = _exit_code(error)
    except BaseException:
        traceback.print_exc()
        code = 1
    _finalize_interpreter()
    return code


def _run_handler(message_socket: socket, transfer_socket: socket, template_pid: int) -> None:
    task = msgspec.json.decode(receive_message(message_socket), type=HandlerTask)
    http = _shared_signed_url_client() if task.network else RelayedUrlClient(RETRY_POLICY, transfer_socket)
    job = _IsolatedJob(msgspec.json.decode(task.data, type=Job), message_socket, Path(task.workdir), http)
    function = pickle.loads(task.function)  # Safe: it comes from the worker, and only names an imported function.
    _drop_privileges(task)
    die_with_parent(template_pid)
    log_to_stdout(task.log_level)
    try:
        message = ChildMessage(result=msgspec.Raw(encode_result(function(job))))
    except SnoozeSignal as signal:
        message = ChildMessage(snooze=signal.seconds)
    except NoRetry as error:
        text = sanitize_text(error) or "the handler raised NoRetry"
        message = ChildMessage(error=text, stack=handler_stack(error), retry=False)
    except NoToken as error:
        message = _failure_message(NO_TOKEN_ERROR, error, retry=False)
    except MemoryError:
        message = ChildMessage(error=_memory_error_text(task))
    except Exception as error:
        message = _failure_message(describe_error(error), error)
    job.send_message(message)


def _failure_message(text: str, error: Exception, *, retry: bool = True) -> ChildMessage:
    return ChildMessage(
        error=text, traceback=full_traceback(error)[-LOG_CHARS_MAX:], stack=handler_stack(error), retry=retry
    )


def _finalize_interpreter() -> None:
    """Join threads, run exit functions and flush output, as at the end of Python, but without freeing objects."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    with suppress(Exception):  # The handler may have closed these streams.
        sys.stdout.flush()
        sys.stderr.flush()


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    sys.stderr.write(f"{error.code}\n")
    return 1


def _memory_error_text(task: HandlerTask) -> str:
    if task.memory_bytes is None:
        return "MemoryError: the machine is out of memory"
    resource.setrlimit(resource.RLIMIT_AS, (task.memory_bytes + MEMORY_RESERVE_BYTES,) * 2)
    return f"MemoryError: the handler used more than its memory_mb={task.memory_bytes // 1024**2}"


def _drop_privileges(task: HandlerTask) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (task.cpu_seconds, task.cpu_seconds + 1))
    if task.memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_AS, (task.memory_bytes, task.memory_bytes + MEMORY_RESERVE_BYTES))
    if (user := unprivileged_user()) is not None:
        uid, gid = _job_user(os.getpid(), user)
        os.chown(task.workdir, uid, gid)
        if uid != user.pw_uid:
            resource.setrlimit(resource.RLIMIT_NPROC, (PROCESSES_MAX, PROCESSES_MAX))
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    disable_new_privileges()
    if not task.network and network_obstacle() is None:
        block_network()


def _job_user(pid: int, fallback: pwd.struct_passwd) -> tuple[int, int]:
    """Return a user and group ID that no other running job has and that owns no files.

    Without enough user IDs, as in some containers, all jobs share the fallback user.
    """
    uid = job_uid(pid)
    return (uid, uid) if is_mapped_uid(uid) else (fallback.pw_uid, fallback.pw_gid)


def preload() -> None:
    """Initialize what every child needs. Called in the template before it forks."""
    unprivileged_user()
    _shared_signed_url_client()
    with suppress(OSError):  # If the certificates cannot be read, the first HTTPS request reports it.
        ssl_context()
    "".encode("idna")  # Import the codec for host names now: an unprivileged user may be unable to read its module.


@cache
def _shared_signed_url_client() -> SignedUrlClient:
    """The HTTP client of the child. It is created in the template, where it opens no connection."""
    return SignedUrlClient(RETRY_POLICY)


@cache
def unprivileged_user() -> pwd.struct_passwd | None:
    """Return the unprivileged user if the worker runs as root, or `None` to keep the user of the worker."""
    return pwd.getpwnam(UNPRIVILEGED_USER) if os.geteuid() == 0 else None
