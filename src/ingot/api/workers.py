"""Routes with which workers register and send heartbeats, and with which they are managed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from ingot.api.claims import require_job_access, require_runnable_type, worker_id_of, worker_scope
from ingot.http.request import Request, Response
from ingot.http.routes import PREFIX, Granted, Route, route_factory
from ingot.identity.authenticator import Authenticator
from ingot.identity.credentials import Forbidden
from ingot.jobs.errors import JobNotFound, ProtocolMismatch, WorkerNotFound
from ingot.jobs.ports import LogEntry
from ingot.jobs.service import Jobs
from ingot.jobs.worker_model import LeaseStatus, RegisteredWorker
from ingot.jobs.workers import Workers
from ingot.kernel.build import read_build
from ingot.kernel.errors import InvalidInput
from ingot.kernel.pages import Page
from ingot.kernel.slices import map_async_in_slices, map_in_slices
from ingot.wire.protocol import OLDEST_PROTOCOL, PROTOCOL
from ingot.wire.workers import (
    JobHeartbeat,
    JobLeaseStatus,
    RegisterWorkerRequest,
    RegisterWorkerResponse,
    WorkerHeartbeatRequest,
    WorkerHeartbeatResponse,
    WorkerListQuery,
    WorkerQuery,
)

HEARTBEAT_BODY_BYTES_MAX = 16 * 1024 * 1024


class WorkersApi:
    """Routes of workers."""

    def __init__(self, workers: Workers, jobs: Jobs, authenticator: Authenticator) -> None:
        self._workers = workers
        self._jobs = jobs
        self._authenticator = authenticator

    def routes(self) -> list[Route]:
        """Return the routes of this module."""
        run, read = Granted("workers.run"), Granted("workers.read")
        own = Granted("workers.manage", or_action="workers.run")
        waits: dict[str, Any] = {"rate": "wait", "waits": True, "body_bytes_max": HEARTBEAT_BODY_BYTES_MAX}
        route = route_factory("workers")
        return [
            route("POST", "/workers", self.register, run, status=201),
            route("GET", "/workers", self.list, read),
            route("GET", "/workers/{id}", self.get, read),
            route("POST", "/workers/{id}/heartbeat", self.heartbeat, run, **waits),
            route("POST", "/workers/{id}/drain", self.drain, own),
            route("DELETE", "/workers/{id}", self.remove, own, status=204),
        ]

    # -- for workers ----------------------------------------------------------------------------------------

    async def register(self, request: Request, body: RegisterWorkerRequest) -> Response[RegisterWorkerResponse]:
        """Register a worker. Registering again updates it and brings it back online.

        A worker whose protocol the server does not support is rejected with `protocol_mismatch`.
        """
        _check_protocol(body)
        for type in body.types:
            require_runnable_type(request, type)
        metadata = bytes(body.metadata)
        worker_id = await worker_id_of(self._authenticator, request, body.id)
        with suppress(WorkerNotFound):
            if await self._is_of_another(request, _tenant_scope(request), worker_id):
                raise Forbidden(f"the worker {worker_id[:64]} was registered by another caller")
        worker = await self._workers.register(
            _tenant_scope(request),
            worker_id,
            body.types,
            hostname=body.hostname,
            version=body.version,
            protocol=body.protocol,
            metadata=metadata or None,
            by=request.caller.principal,
        )
        registered = RegisterWorkerResponse(id=worker.id, heartbeat_seconds=self._workers.heartbeat_seconds)
        return Response(registered, 201, {"location": f"{PREFIX}/workers/{quote(worker.id, safe='')}"})

    async def heartbeat(self, request: Request, id: str, body: WorkerHeartbeatRequest) -> WorkerHeartbeatResponse:
        """Renew the leases of all running jobs of a worker, and wait for a change such as a cancel request.

        Jobs that the worker claimed more than 15 seconds ago and does not list are released.
        """
        worker_id, tenant = await worker_id_of(self._authenticator, request, id), _tenant_scope(request)
        await self._require_worker_access(request, tenant, worker_id)
        can_run = await map_async_in_slices(lambda job: self._can_run(request, job.id), body.jobs)
        jobs = [job for job, is_runnable in zip(body.jobs, can_run, strict=True) if is_runnable]
        scope: dict[str, str | None] = {"tenant": tenant, "worker": worker_scope(request)}
        heartbeats = await map_in_slices(
            lambda job: self._jobs.beat(job.id, job.fence, progress=job.progress, **scope), jobs
        )
        await self._append_logs(jobs, **scope)
        answer = await self._workers.heartbeat(tenant, worker_id, heartbeats, wait_seconds=body.wait_seconds)
        by_job = {status.job_id: status for status in answer.jobs}
        statuses = [by_job.get(job.id) or LeaseStatus(job_id=job.id, fence=job.fence) for job in body.jobs]
        return WorkerHeartbeatResponse(jobs=await map_in_slices(JobLeaseStatus.of, statuses), drain=answer.drain)

    async def _append_logs(self, jobs: Sequence[JobHeartbeat], *, tenant: str | None, worker: str | None) -> None:
        """Append to the logs of attempts. Attempts that lost their lease are ignored: the heartbeat reports them."""
        entries = [
            LogEntry(job_id=job.id, fence=job.fence, text=job.log, offset=job.log_offset, tenant=tenant, worker=worker)
            for job in jobs
            if job.log
        ]
        for result in await self._jobs.append_logs(entries):
            if isinstance(result, InvalidInput):
                raise result

    async def _can_run(self, request: Request, job_id: str) -> bool:
        """Return whether the caller may run jobs of this type. Otherwise it cannot hold a lease of the job."""
        try:
            await require_job_access(self._jobs, request, job_id)
        except JobNotFound:
            return False
        return True

    # -- management -----------------------------------------------------------------------------------------

    async def list(self, request: Request, query: WorkerListQuery) -> Page[RegisteredWorker]:
        """List the workers of the tenant, ordered by ID."""
        request.require("workers.read")
        tenant = _tenant_scope(request, shared=query.shared)
        return await self._workers.list(tenant, cursor=query.cursor, limit=query.limit)

    async def get(self, request: Request, id: str, query: WorkerQuery) -> RegisteredWorker:
        """Return a worker."""
        request.require("workers.read")
        return await self._workers.get(_tenant_scope(request, shared=query.shared), id)

    async def drain(self, request: Request, id: str, query: WorkerQuery) -> RegisteredWorker:
        """Drain a worker: it gets no more jobs, and is notified with its next heartbeat."""
        tenant = _tenant_scope(request, shared=query.shared)
        await self._require_worker_access(request, tenant, id)
        return await self._workers.drain(tenant, id, act=request.act(), itself=_is_caller(request, id))

    async def remove(self, request: Request, id: str, query: WorkerQuery) -> None:
        """Remove a worker. Its jobs are released, which counts neither as a failure nor as a crash."""
        tenant = _tenant_scope(request, shared=query.shared)
        await self._require_worker_access(request, tenant, id)
        await self._workers.remove(tenant, id, act=request.act(), itself=_is_caller(request, id))

    async def _require_worker_access(self, request: Request, tenant: str | None, worker_id: str) -> None:
        """Check that the caller may change a worker. Workers of others are treated like missing ones.

        Raises `WorkerNotFound`, or `Forbidden` for an ID that does not belong to the credential of the caller.
        """
        if await self._is_of_another(request, tenant, worker_id):
            raise WorkerNotFound(f"there is no worker {worker_id[:64]!r} in this tenant")

    async def _is_of_another(self, request: Request, tenant: str | None, worker_id: str) -> bool:
        """Return whether the caller may not change a worker. Raises `WorkerNotFound` or `Forbidden`.

        Without a grant to manage workers, a worker credential may change its own workers, and a token may change
        workers that it registered.
        """
        if request.caller.may("workers.manage"):
            return False
        if request.caller.kind == "worker":
            await worker_id_of(self._authenticator, request, worker_id)
            return False
        return (await self._workers.get(tenant, worker_id)).registered_by != request.caller.principal


def _check_protocol(body: RegisterWorkerRequest) -> None:
    if not OLDEST_PROTOCOL <= body.protocol <= PROTOCOL:
        supported = f"{OLDEST_PROTOCOL} to {PROTOCOL}" if OLDEST_PROTOCOL < PROTOCOL else f"{PROTOCOL}"
        of_worker = "" if body.version is None else f" (version {body.version[:64]})"
        raise ProtocolMismatch(
            f"the worker{of_worker} uses worker protocol {body.protocol}; the server (version {read_build().version}) "
            f"supports {supported}"
        )


def _tenant_scope(request: Request, *, shared: bool = False) -> str | None:
    """Return the tenant whose workers the request concerns, or `None` for shared workers."""
    if request.caller.kind == "worker":
        return request.caller.tenant
    if shared:
        request.require_operator("can read and manage shared workers")
    return None if shared else request.tenant


def _is_caller(request: Request, worker_id: str) -> bool:
    """Return whether a worker sends the request about itself.

    That is a request with its own credential, or with a token that registered it and may not manage workers.
    """
    if request.caller.kind == "worker":
        return worker_id == (request.headers.get("x-worker-id") or request.caller.id)
    return not request.caller.may("workers.manage")
