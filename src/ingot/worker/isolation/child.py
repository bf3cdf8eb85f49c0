"""In the process of a job: rights are given up, the handler runs, and what comes of it is said."""

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

import ingot.client.synchronous.client  # noqa: F401 - handlers make clients, and Python may be in root's own folder
from ingot.client.errors import error_from_code
from ingot.client.server_address import NoToken
from ingot.jobs.model import Job
from ingot.worker.attempt_files import RETRY_POLICY, AttemptFiles
from ingot.worker.file_requests import FileRequest
from ingot.worker.isolation.linux import die_with_parent, disable_new_privileges, is_mapped_uid, job_uid
from ingot.worker.isolation.messages import ChildMessage, HandlerTask, ReplyMessage, receive_message, send_message
from ingot.worker.job import NoRetry, SnoozeSignal, WorkerJob, sanitize_text
from ingot.worker.result_encoding import describe_error, encode_result
from ingot.worker.signed_url_client import SignedUrlClient
from ingot.worker.sync_http_transport import ssl_context

UNPRIVILEGED_USER: Final = "nobody"
NO_TOKEN_ERROR: Final = (
    "NoToken: an isolated handler has no token of the worker's: a client that it makes is given one, "
    "or the handler is not isolated"
)
PROCESSES_MAX: Final = 256  # Of a job, and threads, where it has a user of its own.
MEMORY_RESERVE_BYTES: Final = 64 * 1024 * 1024  # Beyond the limit, for telling that it was reached.


class _IsolatedJob(WorkerJob):
    """A job that tells of itself by a socket."""

    def __init__(self, data: Job, talk: socket, room: Path) -> None:
        super().__init__(data)
        self._message_socket = talk
        self._task_workdir = room
        self._send_lock, self._file_request_lock = threading.Lock(), threading.Lock()
        self._task_files = AttemptFiles(
            data, self._send_file_request, self.workdir, self.check, http=_shared_signed_url_client()
        )

    @property
    def files(self) -> AttemptFiles:
        """What moves its files."""
        return self._task_files

    def workdir(self) -> Path:
        """The folder that it was given."""
        return self._task_workdir

    def progress(self, percent: float, stage: str = "") -> None:
        """Tell how far it is."""
        known = min(100.0, max(0.0, float(percent)))
        self.send_message(ChildMessage(percent=known, stage=sanitize_text(stage)))

    def send_message(self, said: ChildMessage) -> None:
        """Tell the worker something."""
        with self._send_lock:
            send_message(self._message_socket, msgspec.json.encode(said))

    def _send_file_request(self, ask: FileRequest) -> bytes:
        """Have the worker ask: it has a credential, and this process has none."""
        with self._file_request_lock:
            self.send_message(ChildMessage(asks=ask))
            told = msgspec.json.decode(receive_message(self._message_socket), type=ReplyMessage)
        if told.code is not None:
            raise error_from_code(told.code, told.detail, told.hint)
        return bytes(told.answer)

    def log(self, text: object, *, end: str = "\n") -> None:
        """Write to the log of this attempt."""
        sys.stdout.write(f"{text}{end}")
        sys.stdout.flush()


def run_task(talk: socket, template: int, find: Callable[[], None]) -> int:
    """Do what the worker says, with a handler that is to be found first; answers how the process is to end.

    It ends when the template does, at the latest.
    """
    try:
        find()
        _run_handler(talk, template)
        code = 0
    except SystemExit as ended:
        code = _exit_code(ended)
    except BaseException:
        traceback.print_exc()
        code = 1
    _finalize_interpreter()
    return code


def _run_handler(talk: socket, template: int) -> None:
    task = msgspec.json.decode(receive_message(talk), type=HandlerTask)
    job = _IsolatedJob(msgspec.json.decode(task.data, type=Job), talk, Path(task.room))
    function = pickle.loads(task.function)  # It is the worker's word, and names what is imported by now.
    _drop_privileges(task)
    die_with_parent(template)
    try:
        said = ChildMessage(result=msgspec.Raw(encode_result(function(job))))
    except SnoozeSignal as snoozed:
        said = ChildMessage(snooze=snoozed.seconds)
    except NoRetry as error:
        said = ChildMessage(error=sanitize_text(error) or "the handler said not to retry", retry=False)
    except NoToken:
        traceback.print_exc()
        said = ChildMessage(error=NO_TOKEN_ERROR, retry=False)
    except MemoryError:
        said = ChildMessage(error=_memory_error_text(task))
    except Exception as error:
        traceback.print_exc()
        said = ChildMessage(error=describe_error(error))
    job.send_message(said)


def _finalize_interpreter() -> None:
    """Do what an interpreter does at its end, but for taking itself apart."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    with suppress(Exception):  # The handler may have closed them.
        sys.stdout.flush()
        sys.stderr.flush()


def _exit_code(ended: SystemExit) -> int:
    if ended.code is None or isinstance(ended.code, int):
        return ended.code or 0
    sys.stderr.write(f"{ended.code}\n")
    return 1


def _memory_error_text(task: HandlerTask) -> str:
    if task.memory_bytes is None:
        return "MemoryError: the machine has no memory left"
    resource.setrlimit(resource.RLIMIT_AS, (task.memory_bytes + MEMORY_RESERVE_BYTES,) * 2)
    return f"MemoryError: the handler used more than its memory_mb={task.memory_bytes // 1024**2}"


def _drop_privileges(task: HandlerTask) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (task.cpu_seconds, task.cpu_seconds + 1))
    if task.memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_AS, (task.memory_bytes, task.memory_bytes + MEMORY_RESERVE_BYTES))
    if (user := unprivileged_user()) is not None:
        uid, gid = _job_user(os.getpid(), user)
        os.chown(task.room, uid, gid)
        if uid != user.pw_uid:
            resource.setrlimit(resource.RLIMIT_NPROC, (PROCESSES_MAX, PROCESSES_MAX))
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    disable_new_privileges()


def _job_user(pid: int, otherwise: pwd.struct_passwd) -> tuple[int, int]:
    """A user that no other job has at this time, and no file; one for all of them where there are so few users."""
    uid = job_uid(pid)
    return (uid, uid) if is_mapped_uid(uid) else (otherwise.pw_uid, otherwise.pw_gid)


def preload() -> None:
    """Make once what every process needs. Called in the template."""
    unprivileged_user()
    _shared_signed_url_client()
    with suppress(OSError):  # Who needs them learns that they cannot be read.
        ssl_context()
    "".encode("idna")  # What it takes to find a host is read while that can be: Python may be in root's own folder.


@cache
def _shared_signed_url_client() -> SignedUrlClient:
    """What moves files. A copy of it has no connection yet."""
    return SignedUrlClient(RETRY_POLICY)


@cache
def unprivileged_user() -> pwd.struct_passwd | None:
    """Who handlers run as: somebody without rights where the worker is root, and the worker's own user otherwise."""
    return pwd.getpwnam(UNPRIVILEGED_USER) if os.geteuid() == 0 else None
