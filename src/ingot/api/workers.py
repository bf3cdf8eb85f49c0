"""Routes of workers about themselves, and of those who watch over them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from ingot.api.claims import require_job_access, require_runnable_type, worker_id_of, worker_scope
from ingot.http.request import Request, Response
from ingot.http.routes import PREFIX, Granted, Route, routes_of
from ingot.identity.authenticator import Authenticator
from ingot.identity.credentials import Forbidden
from ingot.jobs.errors import JobNotFound, WorkerNotFound
from ingot.jobs.ports import LogEntry
from ingot.jobs.service import Jobs
from ingot.jobs.worker_model import LeaseStatus, RegisteredWorker
from ingot.jobs.workers import Workers
from ingot.kernel.errors import InvalidInput
from ingot.kernel.pages import Page
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
    """Workers over HTTP."""

    def __init__(self, workers: Workers, jobs: Jobs, access: Authenticator) -> None:
        self._workers = workers
        self._jobs = jobs
        self._authenticator = access

    def routes(self) -> list[Route]:
        """The routes of this room."""
        run, read = Granted("workers.run"), Granted("workers.read")
        own = Granted("workers.manage", or_action="workers.run")
        waits: dict[str, Any] = {"rate": "wait", "waits": True, "body_bytes_max": HEARTBEAT_BODY_BYTES_MAX}
        route = routes_of("workers")
        return [
            route("POST", "/workers", self.register, run, status=201),
            route("GET", "/workers", self.list, read),
            route("GET", "/workers/{id}", self.get, read),
            route("POST", "/workers/{id}/heartbeat", self.heartbeat, run, **waits),
            route("POST", "/workers/{id}/drain", self.drain, own),
            route("DELETE", "/workers/{id}", self.remove, own, status=204),
        ]

    # -- what workers say -----------------------------------------------------------------------------------

    async def register(self, call: Request, body: RegisterWorkerRequest) -> Response[RegisterWorkerResponse]:
        """Tell that a worker is there; again is fine, and brings it online again."""
        for type in body.types:
            require_runnable_type(call, type)
        metadata = bytes(body.metadata)
        worker_id = await worker_id_of(self._authenticator, call, body.id)
        with suppress(WorkerNotFound):
            await self._require_worker_access(call, _tenant_scope(call), worker_id)
        worker = await self._workers.register(
            _tenant_scope(call),
            worker_id,
            body.types,
            hostname=body.hostname,
            version=body.version,
            metadata=metadata or None,
            by=call.caller.principal,
        )
        known = RegisterWorkerResponse(id=worker.id, heartbeat_seconds=self._workers.heartbeat_seconds)
        return Response(known, 201, {"location": f"{PREFIX}/workers/{quote(worker.id, safe='')}"})

    async def heartbeat(self, call: Request, id: str, body: WorkerHeartbeatRequest) -> WorkerHeartbeatResponse:
        """Renew the leases of all jobs that a worker is at work on, and wait for something to be told.

        What it was handed longer than 15 seconds ago and does not name is given back.
        """
        worker_id, tenant = await worker_id_of(self._authenticator, call, id), _tenant_scope(call)
        await self._require_worker_access(call, tenant, worker_id)
        own = [job for job in body.jobs if await self._can_run(call, job.id)]
        whose: dict[str, str | None] = {"tenant": tenant, "worker": worker_scope(call)}
        beats = [self._jobs.beat(job.id, job.fence, progress=job.progress, **whose) for job in own]
        await self._append_logs(own, **whose)
        heard = await self._workers.heartbeat(tenant, worker_id, beats, wait_seconds=body.wait_seconds)
        known = {held.job_id: held for held in heard.jobs}
        told = [known.get(job.id) or LeaseStatus(job_id=job.id, fence=job.fence) for job in body.jobs]
        return WorkerHeartbeatResponse(jobs=[JobLeaseStatus.of(held) for held in told], drain=heard.drain)

    async def _append_logs(self, jobs: Sequence[JobHeartbeat], *, tenant: str | None, worker: str | None) -> None:
        """Keep what the attempts wrote. Of those that are lost the heartbeat tells."""
        entries = [
            LogEntry(job_id=job.id, fence=job.fence, text=job.log, offset=job.log_offset, tenant=tenant, worker=worker)
            for job in jobs
            if job.log
        ]
        for answer in await self._jobs.append_logs(entries):
            if isinstance(answer, InvalidInput):
                raise answer

    async def _can_run(self, call: Request, job_id: str) -> bool:
        """Whether the caller has to do with jobs of this type; of others it holds none."""
        try:
            await require_job_access(self._jobs, call, job_id)
        except JobNotFound:
            return False
        return True

    # -- watching over them ---------------------------------------------------------------------------------

    async def list(self, call: Request, query: WorkerListQuery) -> Page[RegisteredWorker]:
        """A page of the tenant's workers, by id; those that serve all tenants with `shared`."""
        call.require("workers.read")
        tenant = _tenant_scope(call, shared=query.shared)
        return await self._workers.list(tenant, cursor=query.cursor, limit=query.limit)

    async def get(self, call: Request, id: str, query: WorkerQuery) -> RegisteredWorker:
        """One worker as it stands. A `/` in its id is written as `%2F`."""
        call.require("workers.read")
        return await self._workers.get(_tenant_scope(call, shared=query.shared), id)

    async def drain(self, call: Request, id: str, query: WorkerQuery) -> RegisteredWorker:
        """Have a worker take no more work: its claims are empty, and its next heartbeat says so."""
        tenant = _tenant_scope(call, shared=query.shared)
        await self._require_worker_access(call, tenant, id)
        return await self._workers.drain(tenant, id, act=call.act(), itself=_is_caller(call, id))

    async def remove(self, call: Request, id: str, query: WorkerQuery) -> None:
        """Forget a worker. What it holds is given back, and counts against nothing."""
        tenant = _tenant_scope(call, shared=query.shared)
        await self._require_worker_access(call, tenant, id)
        await self._workers.remove(tenant, id, act=call.act(), itself=_is_caller(call, id))

    async def _require_worker_access(self, call: Request, tenant: str | None, worker_id: str) -> None:
        """Who may not manage workers has a say in those of its credential, or that it registered."""
        if call.caller.may("workers.manage"):
            return
        if call.caller.kind == "worker":
            await worker_id_of(self._authenticator, call, worker_id)
        elif (await self._workers.get(tenant, worker_id)).registered_by != call.caller.principal:
            raise Forbidden(f"the worker {worker_id[:64]} was registered by somebody else")


def _tenant_scope(call: Request, *, shared: bool = False) -> str | None:
    """Whose workers the caller speaks of; `None` is those that serve all tenants."""
    if call.caller.kind == "worker":
        return call.caller.tenant
    if shared:
        call.require_operator("has to do with what is for all tenants")
    return None if shared else call.tenant


def _is_caller(call: Request, worker_id: str) -> bool:
    """Whether a worker speaks of itself: with its credential, or with the token that registered it and may no more."""
    if call.caller.kind == "worker":
        return worker_id == (call.headers.get("x-worker-id") or call.caller.id)
    return not call.caller.may("workers.manage")
