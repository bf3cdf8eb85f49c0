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
from ingot.client.errors import invalid_response_error
from ingot.client.retry_policy import RetryPolicy
from ingot.client.server_address import ServerAddress
from ingot.client.synchronous.http import SyncHttp
from ingot.client.url_path import url_path
from ingot.jobs.model import Job
from ingot.wire.jobs import SettleResponse, SettleResult
from ingot.wire.workers import JobHeartbeat, RegisterWorkerResponse, WorkerHeartbeatRequest, WorkerHeartbeatResponse
from ingot.worker.async_http_transport import AsyncKeepAliveTransport
from ingot.worker.ports import ClaimedJob, ReportedOutcome
from ingot.worker.sync_http_transport import SyncKeepAliveTransport

RETRY_POLICY: Final = RetryPolicy(retry_seconds=10.0)
COMPLETE_SECONDS: Final = 60.0  # Longer than usual: the bytes of an upload are read back.


class _ClaimTimeout(msgspec.Struct, frozen=True):
    timeout_seconds: float


class _RawClaimResponse(msgspec.Struct, frozen=True):
    jobs: list[msgspec.Raw]


class HttpJobSource:
    """A server as a worker sees it."""

    def __init__(self, place: ServerAddress, worker_id: str) -> None:
        self._address = place
        self._http = AsyncHttp(place, RETRY_POLICY, transport=AsyncKeepAliveTransport())
        self._worker_id = worker_id
        self._worker_path = f"/workers/{quote(worker_id, safe='')}"

    async def register(self, types: Sequence[str]) -> float:
        """See `Board`."""
        body = {"id": self._worker_id, "types": types, "hostname": socket.gethostname(), "version": version("ingot")}
        http = AsyncHttp(
            self._address, RetryPolicy(retry_seconds=0)
        )  # Who starts wants to know at once why nothing happens.
        try:
            return (
                await http.request("POST", "/workers", RegisterWorkerResponse, body=body, idempotent=True)
            ).heartbeat_seconds
        finally:
            await http.close()

    async def claim(self, type: str, *, limit: int, wait_seconds: float) -> list[ClaimedJob]:
        """See `Board`."""
        body = {
            "worker_id": self._worker_id,
            "types": [type],
            "limit": limit,
            "wait_seconds": wait_seconds,
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        found = await self._http.request("POST", "/jobs/claim", bytes, body=body, wait_seconds=wait_seconds)
        try:
            return (
                [_decode_claimed_job(text) for text in msgspec.json.decode(found, type=_RawClaimResponse).jobs]
                if found
                else []
            )
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise invalid_response_error(found, error) from None

    async def heartbeat(self, held: Sequence[JobHeartbeat], *, wait_seconds: float) -> WorkerHeartbeatResponse:
        """See `Board`."""
        body = WorkerHeartbeatRequest(jobs=tuple(held), wait_seconds=wait_seconds)
        path = f"{self._worker_path}/heartbeat"
        return await self._http.request(
            "POST", path, WorkerHeartbeatResponse, body=body, idempotent=True, wait_seconds=wait_seconds
        )

    async def settle(self, endings: Sequence[ReportedOutcome]) -> list[SettleResult]:
        """See `Board`."""
        body = {"jobs": endings}
        return (await self._http.request("POST", "/jobs/settle", SettleResponse, body=body, idempotent=True)).jobs

    async def drain(self) -> None:
        """See `Board`."""
        await self._http.request("POST", f"{self._worker_path}/drain", bytes, idempotent=True)

    async def leave(self) -> None:
        """See `Board`."""
        await self._http.request("DELETE", self._worker_path, bytes, idempotent=True)

    async def close(self) -> None:
        """See `Board`."""
        await self._http.close()


class HttpFileClient:
    """A server that tells attempts where the bytes of their files are read and written. From any thread."""

    def __init__(self, place: ServerAddress) -> None:
        self._address = place
        self._lock = Lock()
        self._http: SyncHttp | None = None

    def post(self, job_id: str, path: str, body: object) -> bytes:
        """POST something about a file of a job, and answer what the server says.

        Every such call may be made again: of the same upload twice one is swept. Raises the error that the server
        tells of, or `ServerUnreachable`.
        """
        with self._lock:
            if self._http is None:
                self._http = SyncHttp(self._address, RETRY_POLICY, transport=SyncKeepAliveTransport())
        whole = f"{url_path('jobs', job_id)}/{path}"
        return self._http.request("POST", whole, bytes, body=body, idempotent=True, wait_seconds=COMPLETE_SECONDS)

    def close(self) -> None:
        """Let go of connections."""
        with self._lock:
            if self._http is not None:
                self._http.close()


def _decode_claimed_job(text: msgspec.Raw) -> ClaimedJob:
    return ClaimedJob(
        job=msgspec.json.decode(text, type=Job),
        timeout_seconds=msgspec.json.decode(text, type=_ClaimTimeout).timeout_seconds,
    )
