"""The HTTP server of an open store, with all routes."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry

from ingot.api.admin import AdminApi
from ingot.api.audit import AuditApi
from ingot.api.blobs import BlobsApi
from ingot.api.bulk_actions import BulkActionsApi
from ingot.api.claims import ClaimsApi
from ingot.api.downloads import Downloads
from ingot.api.events import EventsApi
from ingot.api.files import FilesApi
from ingot.api.jobs import JobsApi
from ingot.api.keys import KeysApi
from ingot.api.logs import LogsApi
from ingot.api.me import MeApi
from ingot.api.ops import VERSION, OpsApi
from ingot.api.people import PeopleApi
from ingot.api.secrets import SecretsApi
from ingot.api.upload_urls import UploadUrls
from ingot.api.workers import WorkersApi
from ingot.dashboard.auth import AuthPages
from ingot.dashboard.me import MePage
from ingot.dashboard.pages import error_page
from ingot.events.ids import EventIds
from ingot.http.app import App
from ingot.http.authentication import RequestAuthenticator, rate_limits_by_class
from ingot.http.buffers import Buffers
from ingot.http.client_address import ClientAddressResolver
from ingot.http.metrics import Metrics
from ingot.http.rate_limits import RateLimiter
from ingot.http.routes import Route, RouteTable
from ingot.http.server import Server
from ingot.http.signing import Signer
from ingot.http.tracing import Tracer
from ingot.jobs.debug_listener import DebugListener
from ingot.kernel.failures import FailureSummaries
from ingot.kernel.logs import is_debug_enabled
from ingot.kernel.msgspec_warmup import prepare_structs
from ingot.settings import Settings
from ingot.wiring.services import Ingot


def build_routes(
    ingot: Ingot, metrics: Metrics, *, public_url: str | None = None, extra_routes: Iterable[Route] = ()
) -> RouteTable:
    """Return all routes of the server, with `extra_routes`. Links point to `public_url`, if it is set."""
    ops = OpsApi(
        ingot.jobs,
        ingot.workers,
        ingot.blobs,
        metrics,
        engine=ingot.engine,
        data=ingot.data,
        expect_fitting_schema=ingot.expect_fitting_schema,
    )
    upload_urls = UploadUrls(ingot.signer, public_url=public_url)
    downloads = Downloads(
        ingot.signer,
        ingot.bucket,
        ingot.blobs.counters,
        public_url=public_url,
        bucket_url_seconds=ingot.bucket_url_seconds,
    )
    apis = (
        JobsApi(ingot.jobs, ingot.blobs, ingot.uploads, upload_urls),
        FilesApi(ingot.jobs, ingot.uploads, downloads, upload_urls),
        LogsApi(ingot.jobs),
        BulkActionsApi(ingot.jobs),
        ClaimsApi(ingot.jobs, ingot.authenticator),
        WorkersApi(ingot.workers, ingot.jobs, ingot.authenticator),
        EventsApi(ingot.events, ingot.feeds, EventIds(ingot.cursors)),
        KeysApi(ingot.blobs, downloads),
        BlobsApi(
            ingot.blobs,
            ingot.uploads,
            downloads,
            upload_urls,
            ingot.garbage_collector,
            ingot.scrub,
            jobs=ingot.jobs,
        ),
        AdminApi(ingot.tenants, ingot.credentials, ingot.jobs),
        SecretsApi(ingot.secrets, ingot.tenants),
        AuditApi(ingot.audit),
        PeopleApi(ingot.members, ingot.users, ingot.sessions, public_url=public_url),
        MeApi(ingot.tenants, ingot.sessions, ingot.credentials, ingot.members),
        AuthPages(ingot.sessions, ingot.provider, ingot.signer, public_url=public_url),
        MePage(ingot.sessions, ingot.members),
        ops,
    )
    table = RouteTable([*(route for api in apis for route in api.routes()), *extra_routes])
    ops.set_routes(table.routes)
    return table


def build_server(
    ingot: Ingot,
    settings: Settings | None = None,
    *,
    tracer: Tracer | None = None,
    extra_routes: Iterable[Route] = (),
    signer: Signer | None = None,
) -> Server:
    """Build a server of this store that also serves `extra_routes`.

    Requests are traced with `tracer`, if it is set.
    """
    prepare_structs()
    settings = settings or Settings()
    metrics = Metrics(CollectorRegistry(), version=VERSION, engine=ingot.engine)
    metrics.register_waiting_heartbeats(lambda: ingot.workers.waiting_heartbeats)
    metrics.register_blobs(ingot.blobs.counters)
    authenticator = RequestAuthenticator(
        ingot.authenticator,
        ingot.tenants,
        RateLimiter(),
        rate_limits=rate_limits_by_class(read=settings.rate_read, write=settings.rate_write, wait=settings.rate_wait),
        address_resolver=ClientAddressResolver(settings.trusted_proxies),
        signer=signer or ingot.signer,
    )
    app = App(
        build_routes(ingot, metrics, public_url=settings.public_url, extra_routes=extra_routes),
        authenticator,
        metrics,
        ingot.cursors,
        tracer=tracer,
        connections_max=settings.connections_max,
        buffers=Buffers(
            settings.buffered_bytes_max,
            upload_bytes=ingot.object_store.write_memory_bytes,
            download_bytes=ingot.object_store.read_memory_bytes,
        ),
        error_page=error_page,
    )
    ingot.jobs.coalesce_commands()
    ingot.jobs.listen(metrics.jobs)
    if is_debug_enabled():
        ingot.jobs.listen(DebugListener())

    def stop() -> None:
        ingot.jobs.stop_waiting()
        ingot.workers.stop_waiting()
        ingot.stop_waiting()
        app.stop()

    loops = [metrics.lag, FailureSummaries()]
    server = Server(app, on_stop=stop, connections_max=settings.connections_max, loops=loops)
    metrics.server.count_connections = lambda: len(server.server_state.connections)
    metrics.server.connections_max = settings.connections_max
    return server
