"""Routes of those who watch over the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from importlib.metadata import version
from typing import Final

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from ingot.blobs.service import Blobs
from ingot.http import docs
from ingot.http.call import Answer, Call
from ingot.http.metrics import Metrics
from ingot.http.openapi import document_of
from ingot.http.table import Granted, Known, Open, Route, routes_of
from ingot.identity.credentials import Forbidden
from ingot.jobs.crew import WorkerStatus
from ingot.jobs.figures import Load
from ingot.jobs.model import JobStatus
from ingot.jobs.service import Jobs
from ingot.jobs.workers import Workers
from ingot.kernel.errors import IngotError
from ingot.kernel.logs import report

VERSION: Final = version("ingot")


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The server answers."""

    status: str = "ok"
    version: str = VERSION


class Lags(msgspec.Struct, frozen=True, kw_only=True):
    """How much this process and its store are behind. `event_loop_seconds` is the worst of the last ten seconds."""

    event_loop_seconds: float
    store: Load


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How the tenant's queue stands, and the server that answers.

    `queue_depth` is what is queued, due or not; `workers` are those of the tenant, not those that serve all.
    """

    version: str
    engine: str
    uptime_seconds: float
    counts: dict[JobStatus, int]
    queue_depth: int
    running: int
    oldest_queued_seconds: float | None
    workers: dict[WorkerStatus, int]
    lags: Lags


class Described(msgspec.Struct, frozen=True):
    """What is said of this API: for programs, and for people."""

    document: msgspec.Raw
    page: bytes


class OpsApi:
    """Health, status and metrics."""

    def __init__(self, jobs: Jobs, workers: Workers, blobs: Blobs, metrics: Metrics, *, engine: str) -> None:
        self._jobs = jobs
        self._blobs = blobs
        self._workers = workers
        self._metrics = metrics
        self._engine = engine
        self._began = time.monotonic()
        self._routes: Iterable[Route] = ()
        self._known: Described | None = None
        self._describing = asyncio.Lock()

    def routes(self) -> list[Route]:
        """The routes of this room."""
        route = routes_of("ops", below="")
        return [
            route("GET", "/", self.root, Open(), status=307),
            route("GET", "/healthz", self.health, Open()),
            route("GET", "/status", self.status, Granted("jobs.read")),
            route("GET", "/openapi.json", self.document, Known()),
            route("GET", "/docs", self.page, Open(), media="text/html"),
            route("GET", "/metrics", self.metrics, Granted("ops.read"), media="text/plain"),
        ]

    async def root(self, call: Call) -> Answer[None]:  # noqa: ARG002 - every handler gets its call
        """Leads to `/docs`."""
        return Answer(None, headers={"location": "/docs"})

    async def health(self, call: Call) -> Health:  # noqa: ARG002 - every handler gets its call
        """Whether the server answers."""
        return Health()

    async def status(self, call: Call) -> Status:
        """How the queue of the tenant stands, and how far the server is behind."""
        call.expect("jobs.read")
        summary = await self._jobs.summary(call.tenant)
        lags = Lags(event_loop_seconds=self._metrics.lag.seconds, store=await self._jobs.load())
        return Status(
            version=VERSION,
            engine=self._engine,
            uptime_seconds=time.monotonic() - self._began,
            counts=summary.counts,
            queue_depth=summary.counts[JobStatus.QUEUED],
            running=summary.running,
            oldest_queued_seconds=summary.oldest_queued_seconds,
            workers=await self._workers.counts(call.tenant),
            lags=lags,
        )

    async def document(self, call: Call) -> msgspec.Raw:  # noqa: ARG002 - every handler gets its call
        """This API as an OpenAPI document."""
        return (await self._described()).document

    async def page(self, call: Call) -> Answer[bytes]:  # noqa: ARG002 - every handler gets its call
        """This API as a page for people."""
        return Answer((await self._described()).page, headers=docs.HEADERS)

    def describe(self, routes: Iterable[Route]) -> None:
        """Say which routes the document tells of. It is made when somebody asks for it: few do, and it takes time."""
        self._routes = routes

    async def _described(self) -> Described:
        async with self._describing:
            if self._known is None:
                self._known = await asyncio.to_thread(_describe, self._routes)
            return self._known

    async def metrics(self, call: Call) -> Answer[bytes]:
        """Figures for Prometheus. What the store cannot tell now is left out."""
        if not call.caller.is_operator:
            raise Forbidden("the figures are those of all tenants", hint="Use a token of the operator.")
        figures = self._metrics.figures
        try:
            figures.depths, figures.load = await self._jobs.depths(), await self._jobs.load()
            found = await self._blobs.figures()
        except IngotError as error:
            figures.depths, figures.load, found = (), None, None
            report("figures_missing", error)
        if self._metrics.blobs is not None:
            self._metrics.blobs.figures = found
        return Answer(generate_latest(self._metrics.registry), headers={"content-type": CONTENT_TYPE_LATEST})


def _describe(routes: Iterable[Route]) -> Described:
    document = document_of(routes, version=VERSION)
    return Described(msgspec.Raw(msgspec.json.encode(document)), docs.page_of(document))
