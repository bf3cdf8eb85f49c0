"""A server of an open store, with all routes."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry

from ingot.api.actions import ActionsApi
from ingot.api.admin import AdminApi
from ingot.api.audit import AuditApi
from ingot.api.blobs import BlobsApi
from ingot.api.downloads import Downloads
from ingot.api.events import EventsApi
from ingot.api.files import FilesApi
from ingot.api.jobs import JobsApi
from ingot.api.keys import KeysApi
from ingot.api.logs import LogsApi
from ingot.api.me import MeApi
from ingot.api.ops import OpsApi
from ingot.api.people import PeopleApi
from ingot.api.plans import Plans
from ingot.api.secrets import SecretsApi
from ingot.api.work import WorkApi
from ingot.api.workers import WorkersApi
from ingot.dashboard.auth import AuthPages
from ingot.dashboard.me import MePage
from ingot.dashboard.pages import error_page
from ingot.http.app import App
from ingot.http.gate import Gate, classes_of
from ingot.http.metrics import Metrics
from ingot.http.peers import Peers
from ingot.http.rates import Rates
from ingot.http.server import Server
from ingot.http.signing import Signer
from ingot.http.table import Route, Table
from ingot.http.traces import Spans
from ingot.jobs.lines import Lines
from ingot.kernel.logs import debugging
from ingot.kernel.structs import prepare_structs
from ingot.settings import Settings
from ingot.wiring.rooms import Ingot


def routes_of(ingot: Ingot, metrics: Metrics, *, public_url: str | None = None, more: Iterable[Route] = ()) -> Table:
    """Every route of the server, and more. People reach it at `public_url`, or where it listens."""
    ops = OpsApi(ingot.jobs, ingot.workers, ingot.blobs, metrics, engine=ingot.engine)
    plans = Plans(ingot.signer, public_url=public_url)
    downloads = Downloads(ingot.signer, ingot.bucket, ingot.blobs.tally, public_url=public_url)
    rooms = (
        JobsApi(ingot.jobs, ingot.uploads, plans),
        FilesApi(ingot.jobs, ingot.uploads, downloads, plans),
        LogsApi(ingot.jobs),
        ActionsApi(ingot.jobs),
        WorkApi(ingot.jobs, ingot.access),
        WorkersApi(ingot.workers, ingot.jobs, ingot.access),
        EventsApi(ingot.events, ingot.feeds),
        KeysApi(ingot.blobs, downloads),
        BlobsApi(
            ingot.blobs,
            ingot.uploads,
            downloads,
            plans,
            ingot.collector,
            ingot.scrub,
            jobs=ingot.jobs,
        ),
        AdminApi(ingot.tenants, ingot.credentials, ingot.jobs),
        SecretsApi(ingot.secrets, ingot.tenants),
        AuditApi(ingot.audit),
        PeopleApi(ingot.members, ingot.users, ingot.sessions, public_url=public_url),
        MeApi(ingot.tenants, ingot.sessions, ingot.credentials),
        AuthPages(ingot.sessions, ingot.provider, public_url=public_url),
        MePage(ingot.sessions),
        ops,
    )
    table = Table([*(route for room in rooms for route in room.routes()), *more])
    ops.describe(table.routes)
    return table


def server_of(
    ingot: Ingot,
    settings: Settings | None = None,
    *,
    spans: Spans | None = None,
    more: Iterable[Route] = (),
    signer: Signer | None = None,
) -> Server:
    """A server of this store, ready to run, that serves more routes too.

    It tells of its requests in `spans`, when there are any.
    """
    prepare_structs()
    settings = settings or Settings()
    metrics = Metrics(CollectorRegistry())
    metrics.count_heartbeats(lambda: ingot.workers.waiting)
    metrics.count_blobs(ingot.blobs.tally)
    gate = Gate(
        ingot.access,
        ingot.tenants,
        Rates(),
        classes=classes_of(read=settings.rate_read, write=settings.rate_write, wait=settings.rate_wait),
        peers=Peers(settings.trusted_proxies),
        signer=signer or ingot.signer,
    )
    app = App(
        routes_of(ingot, metrics, public_url=settings.public_url, more=more),
        gate,
        metrics,
        spans=spans,
        connections_max=settings.connections_max,
        page_of=error_page,
    )
    ingot.jobs.serve_many()
    ingot.jobs.listen(metrics.figures)
    if debugging():
        ingot.jobs.listen(Lines())

    def stop() -> None:
        ingot.jobs.stop_waiting()
        ingot.workers.stop_waiting()
        ingot.stop_waiting()
        app.stop()

    return Server(app, on_stop=stop, connections_max=settings.connections_max, loops=[metrics.lag])
