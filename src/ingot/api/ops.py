"""Routes of operations: health, status, metrics and the API reference."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from ingot.blobs.service import Blobs
from ingot.http import docs
from ingot.http.metrics import Metrics
from ingot.http.openapi import openapi_document
from ingot.http.request import Request, Response
from ingot.http.routes import Authenticated, Granted, Open, Route, route_factory
from ingot.http.server_metrics import DiskSpace
from ingot.identity.credentials import Forbidden
from ingot.jobs.metrics import Load
from ingot.jobs.model import JobStatus
from ingot.jobs.service import Jobs
from ingot.jobs.worker_model import WorkerStatus
from ingot.jobs.workers import Workers
from ingot.kernel.build import read_build
from ingot.kernel.errors import IngotError
from ingot.kernel.failures import failures
from ingot.wire.protocol import OLDEST_PROTOCOL, PROTOCOL

VERSION: Final = read_build().version
DESCRIBE_SECONDS: Final = 60.0


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The response of a server that is up."""

    status: str = "ok"
    """Always `ok`."""
    version: str = VERSION
    """Version of Ingot: the release, and the commit that it was built from."""
    protocol: int = PROTOCOL
    """Newest version of the worker protocol that the server supports."""
    oldest_protocol: int = OLDEST_PROTOCOL
    """Oldest version of the worker protocol that the server supports."""


class Lags(msgspec.Struct, frozen=True, kw_only=True):
    """The delays of this process and the load of its store."""

    event_loop_seconds: float
    """Longest delay of the event loop in the last 10 seconds."""
    store: Load
    """Load of the store."""


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the tenant's queue and of the server."""

    version: str
    """Version of Ingot: the release, and the commit that it was built from."""
    protocol: int
    """Newest version of the worker protocol that the server supports."""
    oldest_protocol: int
    """Oldest version of the worker protocol that the server supports."""
    engine: str
    """Engine of the store: `sqlite` or `postgres`."""
    uptime_seconds: float
    """Seconds since the server started."""
    counts: dict[JobStatus, int]
    """Number of jobs by status."""
    queue_depth: int
    """Number of queued jobs, due or not."""
    running: int
    """Number of running jobs."""
    oldest_queued_seconds: float | None
    """Seconds for which the oldest ready job has been waiting; `null` if no job is ready."""
    workers: dict[WorkerStatus, int]
    """Number of the tenant's workers by status. Shared workers are not included."""
    lags: Lags
    """Delays of this process and load of its store."""


class ApiDocs(msgspec.Struct, frozen=True):
    """The encoded OpenAPI document and the HTML page of the API."""

    document: msgspec.Raw
    page: bytes


class OpsApi:
    """Routes of health, status, metrics and the API reference."""

    def __init__(
        self,
        jobs: Jobs,
        workers: Workers,
        blobs: Blobs,
        metrics: Metrics,
        *,
        engine: str,
        data: Path,
        expect_fitting_schema: Callable[[], None],
    ) -> None:
        self._expect_fitting_schema = expect_fitting_schema
        self._jobs = jobs
        self._blobs = blobs
        self._workers = workers
        self._metrics = metrics
        self._engine = engine
        self._data = data
        self._described_at: float | None = None
        self._started_at = time.monotonic()
        self._routes: Iterable[Route] = ()
        self._docs_cache: ApiDocs | None = None
        self._docs_lock = asyncio.Lock()

    def routes(self) -> list[Route]:
        """Return the routes of this module."""
        route = route_factory("ops", prefix="")
        return [
            route("GET", "/", self.root, Open(), status=307),
            route("GET", "/healthz", self.health, Open()),
            route("GET", "/status", self.status, Granted("jobs.read")),
            route("GET", "/openapi.json", self.document, Authenticated()),
            route("GET", "/docs", self.page, Open(), response_content_type="text/html"),
            route("GET", "/metrics", self.metrics, Granted("ops.read"), response_content_type="text/plain"),
        ]

    async def root(self, request: Request) -> Response[None]:  # noqa: ARG002 - handlers share one signature
        """Redirect to `/docs`."""
        return Response(None, headers={"location": "/docs"})

    async def health(self, request: Request) -> Health:  # noqa: ARG002 - handlers share one signature
        """Report that the server is up. The status is 503 while it does not fit the schema of its database."""
        self._expect_fitting_schema()
        return Health()

    async def status(self, request: Request) -> ServerStatus:
        """Return the state of the tenant's queue and the load of the server."""
        request.require("jobs.read")
        summary = await self._jobs.summary(request.tenant)
        lags = Lags(event_loop_seconds=self._metrics.lag.worst_seconds, store=await self._jobs.load())
        return ServerStatus(
            version=VERSION,
            protocol=PROTOCOL,
            oldest_protocol=OLDEST_PROTOCOL,
            engine=self._engine,
            uptime_seconds=time.monotonic() - self._started_at,
            counts=summary.counts,
            queue_depth=summary.counts[JobStatus.QUEUED],
            running=summary.running,
            oldest_queued_seconds=summary.oldest_queued_seconds,
            workers=await self._workers.counts(request.tenant),
            lags=lags,
        )

    async def document(self, request: Request) -> msgspec.Raw:  # noqa: ARG002 - handlers share one signature
        """Return this API as an OpenAPI document."""
        return (await self._api_docs()).document

    async def page(self, request: Request) -> Response[bytes]:  # noqa: ARG002 - handlers share one signature
        """Return this API as an HTML page."""
        return Response((await self._api_docs()).page, headers=docs.HEADERS)

    def set_routes(self, routes: Iterable[Route]) -> None:
        """Set the routes of the OpenAPI document, which is made at the first request for it."""
        self._routes = routes

    async def _api_docs(self) -> ApiDocs:
        async with self._docs_lock:
            if self._docs_cache is None:
                self._docs_cache = await asyncio.to_thread(_render_api_docs, self._routes)
            return self._docs_cache

    async def metrics(self, request: Request) -> Response[bytes]:
        """Return metrics for Prometheus. If the store cannot be read, its metrics are left out."""
        if not request.caller.is_operator:
            raise Forbidden("only operators can read metrics, which cover all tenants", hint="Use an operator token.")
        job_metrics, server_metrics = self._metrics.jobs, self._metrics.server
        try:
            job_metrics.depths, job_metrics.load = await self._jobs.depths(), await self._jobs.load()
            blob_metrics = await self._blobs.metrics()
            server_metrics.workers = await self._workers.total_counts()
            await self._describe_store()
        except IngotError as error:
            job_metrics.depths, job_metrics.load, blob_metrics = (), None, None
            server_metrics.workers = server_metrics.store = self._described_at = None
            failures.log("metrics_incomplete", error)
        if self._metrics.blobs is not None:
            self._metrics.blobs.store_metrics = blob_metrics
        server_metrics.disk = await asyncio.to_thread(_disk_space, self._data)
        return Response(generate_latest(self._metrics.registry), headers={"content-type": CONTENT_TYPE_LATEST})

    async def _describe_store(self) -> None:
        """Read the size of the database, unless it was read recently: PostgreSQL looks at every file."""
        now = time.monotonic()
        if self._described_at is None or now - self._described_at >= DESCRIBE_SECONDS:
            self._metrics.server.store = await self._jobs.describe_store()
            self._described_at = now


def _disk_space(folder: Path) -> DiskSpace | None:
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None
    return DiskSpace(total=usage.total, free=usage.free)


def _render_api_docs(routes: Iterable[Route]) -> ApiDocs:
    document = openapi_document(routes, version=VERSION)
    return ApiDocs(msgspec.Raw(msgspec.json.encode(document)), docs.render_docs_page(document))
