"""The job source and the file client of a worker that uses a server over HTTP."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock
from typing import Final
from urllib.parse import quote

import httpx
import msgspec

from ingot.client.asynchronous.http import AsyncHttp
from ingot.client.errors import invalid_response_error
from ingot.client.retry_policy import RetryPolicy
from ingot.client.server_address import ServerAddress
from ingot.client.synchronous.http import SyncHttp
from ingot.client.url_path import url_path
from ingot.jobs.errors import ProtocolMismatch
from ingot.jobs.model import Job
from ingot.kernel.build import read_build
from ingot.kernel.errors import IngotError
from ingot.wire.jobs import AttemptReleased, SettleResponse, SettleResult
from ingot.wire.protocol import PROTOCOL
from ingot.wire.workers import JobHeartbeat, RegisterWorkerResponse, WorkerHeartbeatRequest, WorkerHeartbeatResponse
from ingot.worker.async_http_transport import AsyncKeepAliveTransport
from ingot.worker.ports import ClaimedJob, ReportedOutcome
from ingot.worker.sync_http_transport import SyncKeepAliveTransport

RETRY_POLICY: Final = RetryPolicy(retry_seconds=10.0)
# A heartbeat that got lost with its connection has to be repeated over another one well before the lease expires.
HEARTBEAT_RESPONSE_SECONDS: Final = 5.0
HEARTBEAT_CONNECT_SECONDS: Final = 3.0
COMPLETE_SECONDS: Final = 60.0  # Longer than other requests, because the server verifies the bytes of the upload.


class _ClaimTimeout(msgspec.Struct, frozen=True):
    timeout_seconds: float


class _RawClaimResponse(msgspec.Struct, frozen=True):
    jobs: list[msgspec.Raw]


class _ClaimedAttempt(msgspec.Struct, frozen=True):
    id: str
    fence: int


class HttpJobSource:
    """Claims and settles jobs over HTTP. See `JobSource`."""

    def __init__(self, address: ServerAddress, worker_id: str) -> None:
        self._address = address
        self._http = AsyncHttp(address, RETRY_POLICY, transport=AsyncKeepAliveTransport())
        self._worker_id = worker_id
        self._worker_path = f"/workers/{quote(worker_id, safe='')}"
        self._types: Sequence[str] = ()

    async def register(self, types: Sequence[str]) -> float:
        """See `JobSource`."""
        self._types = types
        body = {
            "id": self._worker_id,
            "types": types,
            "hostname": socket.gethostname(),
            "version": read_build().version,
            "protocol": PROTOCOL,
        }
        # Do not retry here: the caller reports each failure when the worker starts, and retries itself.
        http = AsyncHttp(self._address, RetryPolicy(retry_seconds=0))
        try:
            return (
                await http.request("POST", "/workers", RegisterWorkerResponse, body=body, idempotent=True)
            ).heartbeat_seconds
        finally:
            await http.close()

    async def claim(self, type: str, *, limit: int, wait_seconds: float) -> list[ClaimedJob]:
        """See `JobSource`.

        Jobs of a response that cannot be decoded are released at once. Then the worker registers again, so that a
        server that does not support its protocol any more says so.
        """
        body = {
            "worker_id": self._worker_id,
            "types": [type],
            "limit": limit,
            "wait_seconds": wait_seconds,
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        response_body = await self._http.request("POST", "/jobs/claim", bytes, body=body, wait_seconds=wait_seconds)
        try:
            return (
                [
                    _decode_claimed_job(raw_job)
                    for raw_job in msgspec.json.decode(response_body, type=_RawClaimResponse).jobs
                ]
                if response_body
                else []
            )
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            await self._release(response_body)
            await self._check_protocol()
            raise invalid_response_error(response_body, error) from None

    async def _release(self, response_body: bytes) -> None:
        """Release the jobs of a claim, as far as their IDs and fences can be decoded."""
        outcomes = []
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            for raw_job in msgspec.json.decode(response_body, type=_RawClaimResponse).jobs:
                attempt = msgspec.json.decode(raw_job, type=_ClaimedAttempt)
                outcomes.append(AttemptReleased(id=attempt.id, fence=attempt.fence))
        if outcomes:
            with suppress(IngotError):  # The server releases them when the next heartbeats do not list them.
                await self.settle(outcomes)

    async def _check_protocol(self) -> None:
        """Register again. Raises `ProtocolMismatch` if the server does not support the protocol of this worker."""
        try:
            if self._types:
                await self.register(self._types)
        except ProtocolMismatch:
            raise
        except IngotError:
            return

    async def heartbeat(self, heartbeats: Sequence[JobHeartbeat], *, wait_seconds: float) -> WorkerHeartbeatResponse:
        """See `JobSource`."""
        body = WorkerHeartbeatRequest(jobs=tuple(heartbeats), wait_seconds=wait_seconds)
        path = f"{self._worker_path}/heartbeat"
        timeout = httpx.Timeout(HEARTBEAT_RESPONSE_SECONDS + wait_seconds, connect=HEARTBEAT_CONNECT_SECONDS)
        return await self._http.request(
            "POST", path, WorkerHeartbeatResponse, body=body, idempotent=True, timeout=timeout
        )

    async def settle(self, outcomes: Sequence[ReportedOutcome]) -> list[SettleResult]:
        """See `JobSource`."""
        body = {"jobs": outcomes}
        return (await self._http.request("POST", "/jobs/settle", SettleResponse, body=body, idempotent=True)).jobs

    async def drain(self) -> None:
        """See `JobSource`."""
        await self._http.request("POST", f"{self._worker_path}/drain", bytes, idempotent=True)

    async def leave(self) -> None:
        """See `JobSource`."""
        await self._http.request("DELETE", self._worker_path, bytes, idempotent=True)

    async def close(self) -> None:
        """See `JobSource`."""
        await self._http.close()


class HttpFileClient:
    """Sends the file requests of attempts to a server. Thread-safe."""

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        self._lock = Lock()
        self._http: SyncHttp | None = None

    def post(self, job_id: str, path: str, body: object) -> bytes:
        """Send a POST request about the files of a job and return the response body.

        These requests are safe to repeat: if an upload is begun twice, the server removes one of the two. Raises the
        error that the server reports, or `ServerUnreachable`.
        """
        with self._lock:
            if self._http is None:
                self._http = SyncHttp(self._address, RETRY_POLICY, transport=SyncKeepAliveTransport())
        request_path = f"{url_path('jobs', job_id)}/{path}"
        return self._http.request(
            "POST", request_path, bytes, body=body, idempotent=True, wait_seconds=COMPLETE_SECONDS
        )

    def close(self) -> None:
        """Close connections."""
        with self._lock:
            if self._http is not None:
                self._http.close()


def _decode_claimed_job(raw_job: msgspec.Raw) -> ClaimedJob:
    return ClaimedJob(
        job=msgspec.json.decode(raw_job, type=Job),
        timeout_seconds=msgspec.json.decode(raw_job, type=_ClaimTimeout).timeout_seconds,
    )
