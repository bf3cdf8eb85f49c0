"""Work over HTTP."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from importlib.metadata import version
from threading import Lock
from typing import Final
from urllib.parse import quote

import msgspec

from ingot.client.asynchronous.http import AsyncHttp
from ingot.client.errors import unreadable
from ingot.client.paths import at
from ingot.client.patience import Patience
from ingot.client.place import Place
from ingot.client.synchronous.http import SyncHttp
from ingot.jobs.model import Job
from ingot.wire.jobs import SettleAnswer, SettleAnswers
from ingot.wire.workers import HeldJob, Registered, WorkerBeat, WorkerBeatAnswer
from ingot.worker.lean import LeanTransport
from ingot.worker.lean_sync import SyncLeanTransport
from ingot.worker.ports import Ending, Work

PATIENCE: Final = Patience(seconds=10.0)
COMPLETE_SECONDS: Final = 60.0  # Longer than usual: the bytes of an upload are read back.


class _Timed(msgspec.Struct, frozen=True):
    timeout_seconds: float


class _Claimed(msgspec.Struct, frozen=True):
    jobs: list[msgspec.Raw]


class HttpBoard:
    """A server as a worker sees it."""

    def __init__(self, place: Place, worker_id: str) -> None:
        self._place = place
        self._http = AsyncHttp(place, PATIENCE, transport=LeanTransport())
        self._id = worker_id
        self._path = f"/workers/{quote(worker_id, safe='')}"

    async def register(self, types: Sequence[str]) -> float:
        """See `Board`."""
        body = {"id": self._id, "types": types, "hostname": socket.gethostname(), "version": version("ingot")}
        http = AsyncHttp(self._place, Patience(seconds=0))  # Who starts wants to know at once why nothing happens.
        try:
            return (await http.ask("POST", "/workers", Registered, body=body, safe=True)).heartbeat_seconds
        finally:
            await http.close()

    async def claim(self, type: str, *, limit: int, wait_seconds: float) -> list[Work]:
        """See `Board`."""
        body = {
            "worker_id": self._id,
            "types": [type],
            "limit": limit,
            "wait_seconds": wait_seconds,
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        found = await self._http.ask("POST", "/jobs/claim", bytes, body=body, wait_seconds=wait_seconds)
        try:
            return [_work(text) for text in msgspec.json.decode(found, type=_Claimed).jobs] if found else []
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise unreadable(found, error) from None

    async def beat(self, held: Sequence[HeldJob], *, wait_seconds: float) -> WorkerBeatAnswer:
        """See `Board`."""
        body = WorkerBeat(jobs=tuple(held), wait_seconds=wait_seconds)
        path = f"{self._path}/heartbeat"
        return await self._http.ask("POST", path, WorkerBeatAnswer, body=body, safe=True, wait_seconds=wait_seconds)

    async def settle(self, endings: Sequence[Ending]) -> list[SettleAnswer]:
        """See `Board`."""
        body = {"jobs": endings}
        return (await self._http.ask("POST", "/jobs/settle", SettleAnswers, body=body, safe=True)).jobs

    async def drain(self) -> None:
        """See `Board`."""
        await self._http.ask("POST", f"{self._path}/drain", bytes, safe=True)

    async def leave(self) -> None:
        """See `Board`."""
        await self._http.ask("DELETE", self._path, bytes, safe=True)

    async def close(self) -> None:
        """See `Board`."""
        await self._http.close()


class HttpFileDesk:
    """A server that tells attempts where the bytes of their files are read and written. From any thread."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._door = Lock()
        self._http: SyncHttp | None = None

    def ask(self, job_id: str, path: str, body: object) -> bytes:
        """POST something about a file of a job, and answer what the server says.

        Every such call may be made again: of the same upload twice one is swept. Raises the error that the server
        tells of, or `ServerUnreachable`.
        """
        with self._door:
            if self._http is None:
                self._http = SyncHttp(self._place, PATIENCE, transport=SyncLeanTransport())
        whole = f"{at('jobs', job_id)}/{path}"
        return self._http.ask("POST", whole, bytes, body=body, safe=True, wait_seconds=COMPLETE_SECONDS)

    def close(self) -> None:
        """Let go of connections."""
        with self._door:
            if self._http is not None:
                self._http.close()


def _work(text: msgspec.Raw) -> Work:
    return Work(
        job=msgspec.json.decode(text, type=Job), timeout_seconds=msgspec.json.decode(text, type=_Timed).timeout_seconds
    )
