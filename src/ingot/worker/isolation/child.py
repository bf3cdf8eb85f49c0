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
from ingot.client.errors import error_of_code
from ingot.client.place import NoToken
from ingot.jobs.model import Job
from ingot.worker.asks import Ask
from ingot.worker.files import PATIENCE, Files
from ingot.worker.isolation.linux import end_with, gain_nothing, is_known, user_of
from ingot.worker.isolation.words import Said, Task, Told, receive, send
from ingot.worker.job import NoRetry, Snoozed, WorkerJob, sendable
from ingot.worker.lean_bytes import BytesHttp
from ingot.worker.lean_sync import trusted
from ingot.worker.results import error_text, result_text

UNPRIVILEGED: Final = "nobody"
NO_TOKEN: Final = (
    "NoToken: an isolated handler has no token of the worker's: a client that it makes is given one, "
    "or the handler is not isolated"
)
PROCESSES_MAX: Final = 256  # Of a job, and threads, where it has a user of its own.
TELLING_BYTES: Final = 64 * 1024 * 1024  # Beyond the limit, for telling that it was reached.


class _IsolatedJob(WorkerJob):
    """A job that tells of itself by a socket."""

    def __init__(self, data: Job, talk: socket, room: Path) -> None:
        super().__init__(data)
        self._talk = talk
        self._given_room = room
        self._saying, self._asking = threading.Lock(), threading.Lock()
        self._moving = Files(data, self._ask, self.room, self.check, http=_http())

    @property
    def files(self) -> Files:
        """What moves its files."""
        return self._moving

    def room(self) -> Path:
        """The folder that it was given."""
        return self._given_room

    def progress(self, percent: float, stage: str = "") -> None:
        """Tell how far it is."""
        known = min(100.0, max(0.0, float(percent)))
        self.say(Said(percent=known, stage=sendable(stage)))

    def say(self, said: Said) -> None:
        """Tell the worker something."""
        with self._saying:
            send(self._talk, msgspec.json.encode(said))

    def _ask(self, ask: Ask) -> bytes:
        """Have the worker ask: it has a credential, and this process has none."""
        with self._asking:
            self.say(Said(asks=ask))
            told = msgspec.json.decode(receive(self._talk), type=Told)
        if told.code is not None:
            raise error_of_code(told.code, told.detail, told.hint)
        return bytes(told.answer)

    def log(self, text: object, *, end: str = "\n") -> None:
        """Write to the log of this attempt."""
        sys.stdout.write(f"{text}{end}")
        sys.stdout.flush()


def work(talk: socket, template: int, find: Callable[[], None]) -> int:
    """Do what the worker says, with a handler that is to be found first; answers how the process is to end.

    It ends when the template does, at the latest.
    """
    try:
        find()
        _do(talk, template)
        code = 0
    except SystemExit as ended:
        code = _exit_code(ended)
    except BaseException:
        traceback.print_exc()
        code = 1
    _finish()
    return code


def _do(talk: socket, template: int) -> None:
    task = msgspec.json.decode(receive(talk), type=Task)
    job = _IsolatedJob(msgspec.json.decode(task.data, type=Job), talk, Path(task.room))
    function = pickle.loads(task.function)  # It is the worker's word, and names what is imported by now.
    _give_up_rights(task)
    end_with(template)
    try:
        said = Said(result=msgspec.Raw(result_text(function(job))))
    except Snoozed as snoozed:
        said = Said(snooze=snoozed.seconds)
    except NoRetry as error:
        said = Said(error=sendable(error) or "the handler said not to retry", retry=False)
    except NoToken:
        traceback.print_exc()
        said = Said(error=NO_TOKEN, retry=False)
    except MemoryError:
        said = Said(error=_memory_used_up(task))
    except Exception as error:
        traceback.print_exc()
        said = Said(error=error_text(error))
    job.say(said)


def _finish() -> None:
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


def _memory_used_up(task: Task) -> str:
    if task.memory_bytes is None:
        return "MemoryError: the machine has no memory left"
    resource.setrlimit(resource.RLIMIT_AS, (task.memory_bytes + TELLING_BYTES,) * 2)
    return f"MemoryError: the handler used more than its memory_mb={task.memory_bytes // 1024**2}"


def _give_up_rights(task: Task) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (task.cpu_seconds, task.cpu_seconds + 1))
    if task.memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_AS, (task.memory_bytes, task.memory_bytes + TELLING_BYTES))
    if (user := unprivileged()) is not None:
        uid, gid = _own_user(os.getpid(), user)
        os.chown(task.room, uid, gid)
        if uid != user.pw_uid:
            resource.setrlimit(resource.RLIMIT_NPROC, (PROCESSES_MAX, PROCESSES_MAX))
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    gain_nothing()


def _own_user(pid: int, otherwise: pwd.struct_passwd) -> tuple[int, int]:
    """A user that no other job has at this time, and no file; one for all of them where there are so few users."""
    uid = user_of(pid)
    return (uid, uid) if is_known(uid) else (otherwise.pw_uid, otherwise.pw_gid)


def prepare() -> None:
    """Make once what every process needs. Called in the template."""
    unprivileged()
    _http()
    with suppress(OSError):  # Who needs them learns that they cannot be read.
        trusted()
    "".encode("idna")  # What it takes to find a host is read while that can be: Python may be in root's own folder.


@cache
def _http() -> BytesHttp:
    """What moves files. A copy of it has no connection yet."""
    return BytesHttp(PATIENCE)


@cache
def unprivileged() -> pwd.struct_passwd | None:
    """Who handlers run as: somebody without rights where the worker is root, and the worker's own user otherwise."""
    return pwd.getpwnam(UNPRIVILEGED) if os.geteuid() == 0 else None
