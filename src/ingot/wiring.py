"""Wiring: the only file that names concrete classes."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec
import structlog
import uvloop
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
from ingot.api.work import WorkApi
from ingot.api.workers import WorkersApi
from ingot.blobs.collector import Collector
from ingot.blobs.errors import ObjectsElsewhere
from ingot.blobs.model import Home
from ingot.blobs.ports import KeepObjects, SigningStore
from ingot.blobs.scrub import Scrub
from ingot.blobs.service import Blobs
from ingot.blobs.stocktaking import Stocktaking
from ingot.blobs.tally import Tally
from ingot.blobs.uploads import Uploads
from ingot.blobs.verification import Verification
from ingot.client.place import Place, find_place
from ingot.dashboard.auth import AuthPages
from ingot.dashboard.me import MePage
from ingot.dashboard.pages import error_page
from ingot.engines.postgres import PostgresStore, migrate
from ingot.engines.postgres.direct import Direct
from ingot.engines.sqlite import SQLiteStore
from ingot.events.acts import Audit
from ingot.events.feeds import Feeds
from ingot.events.retention import EventRetention
from ingot.events.service import Events
from ingot.http.app import App
from ingot.http.gate import Gate, classes_of
from ingot.http.metrics import Metrics
from ingot.http.peers import Peers
from ingot.http.rates import Rates
from ingot.http.server import Server
from ingot.http.signing import Signer
from ingot.http.table import Route, Table
from ingot.http.traces import Spans
from ingot.identity.access import Access
from ingot.identity.members import Members
from ingot.identity.model import Tenant
from ingot.identity.people import PeopleRules
from ingot.identity.removal import Removal
from ingot.identity.service import Tenants
from ingot.identity.sessions import Sessions
from ingot.identity.tokens import Credentials
from ingot.identity.usage import Usage
from ingot.identity.users import Users
from ingot.jobs.lines import Lines
from ingot.jobs.maintenance import Maintenance
from ingot.jobs.model import Definition
from ingot.jobs.retention import Retention
from ingot.jobs.rounds import WorkerTending, WorkerWatch
from ingot.jobs.service import Jobs
from ingot.jobs.workers import Workers
from ingot.kernel.clock import Clock, SystemClock
from ingot.kernel.errors import IngotError, InvalidInput, StoreError, StoreMisconfigured
from ingot.kernel.logs import configure_logs, debugging, report
from ingot.kernel.loops import Loop
from ingot.kernel.secret_key import SecretKeyUnusable, fingerprint, secret_key
from ingot.kernel.structs import prepare_structs
from ingot.objects.files import Files
from ingot.objects.local import LocalStore
from ingot.objects.room import Room
from ingot.outbound.provider import Provider
from ingot.settings import ClientSettings, Settings, SettingsError, read_client_settings, read_settings
from ingot.worker.app import Worker
from ingot.worker.asks import NoFileDesk
from ingot.worker.handlers import BUILT_IN
from ingot.worker.hours import Hours
from ingot.worker.isolation import check_isolated
from ingot.worker.over_http import HttpBoard, HttpFileDesk
from ingot.worker.over_postgres import Entrance, PostgresBoard
from ingot.worker.ports import Board, FileDesk
from ingot.worker.runner import DRAIN_SECONDS, Runner

if TYPE_CHECKING:
    from ingot.objects.s3 import BucketStore

EXIT_AT_ONCE: Final = 130
log = structlog.get_logger("ingot.worker")
Store = SQLiteStore | PostgresStore


class Ingot(msgspec.Struct, frozen=True, kw_only=True):
    """An open store, room by room."""

    jobs: Jobs
    workers: Workers
    tenants: Tenants
    events: Events
    feeds: Feeds
    audit: Audit
    access: Access
    credentials: Credentials
    sessions: Sessions
    members: Members
    users: Users
    blobs: Blobs
    uploads: Uploads
    collector: Collector
    scrub: Scrub
    stocktaking: Stocktaking
    bucket: SigningStore | None  # Where clients read and write by themselves.
    signer: Signer
    provider: Provider | None
    default_tenant: Tenant
    engine: Literal["sqlite", "postgres"]
    stop_waiting: Callable[[], None]  # For a database that is away; called when the end begins.
    keep_key: Callable[[bool], Awaitable[bool]]  # Whether servers have this key; with true, from now on.


@asynccontextmanager
async def open(  # noqa: A001 - read as `ingot.open`
    data: Path | str | None = None, *, settings: Settings | None = None, clock: Clock | None = None, tend: bool = True
) -> AsyncIterator[Ingot]:
    """Open the store, made when missing, and close it at the end of the block.

    It is in the data folder, or, with a `database_url` in the settings, in that PostgreSQL database, which is migrated
    first when there is a `database_owner_url`. `settings` are read from the environment when missing; `data` is the
    folder instead of theirs, and is refused beside a `database_url`. With `tend=False` nothing runs in the background:
    due work and lost leases wait for a claim, or for `jobs.tend()`.
    """
    configure_logs()
    settings = _settings_for(data, settings or read_settings())
    clock = clock or SystemClock()
    prepare_structs()
    store = await _open_store(settings, clock)
    objects: LocalStore | BucketStore | None = None
    try:
        objects = await _open_objects(settings, clock)
        home = await _expect_objects(store, objects)
        ingot = await _rooms_of(store, objects, home, settings, clock)
        loops = _loops_of(ingot, store, settings, clock) if tend else []
        for loop in loops:
            loop.start()
        if tend and isinstance(store, PostgresStore):
            store.watch.start()  # It ends with the store: until then others are told what is given back.
        try:
            yield ingot
        finally:
            ingot.stop_waiting()
            ingot.workers.stop_waiting()
            for loop in loops:
                await _end(loop)
            await ingot.uploads.verifier.close()
            await ingot.feeds.close()
            await ingot.jobs.close()
            if ingot.provider is not None:
                await ingot.provider.close()
    finally:
        if objects is not None:
            await objects.close()
        await store.close()


def _settings_for(data: Path | str | None, settings: Settings) -> Settings:
    if data is None:
        return settings
    if settings.database_url is not None:
        raise SettingsError(
            f"open() was given the folder {str(data)!r}, and INGOT_DATABASE_URL names a database",
            hint="Leave out one of them.",
        )
    return msgspec.structs.replace(settings, data=Path(data))


async def _rooms_of(
    store: Store, objects: LocalStore | BucketStore, home: Home, settings: Settings, clock: Clock
) -> Ingot:
    tenants, access = Tenants(store), Access(store, clock, _rules_of(settings))
    jobs, events = Jobs(store, lease_seconds=settings.lease_seconds), Events(store)
    workers = Workers(store, jobs, lease_seconds=settings.lease_seconds)
    await workers.look_for_drains()
    feeds = Feeds(events, clock, stats=jobs.summary)
    store.on_event(feeds.hint)
    tenants.on_changed(access.forget)
    for let_go in (lambda _: access.forget(), jobs.let_go, workers.let_go):
        tenants.on_removed(let_go)
    bucket = None if isinstance(objects, LocalStore) else objects
    tally, most = Tally(), settings.max_blob_bytes
    key = secret_key(settings.data, settings.secret_key)
    return Ingot(
        jobs=jobs,
        workers=workers,
        tenants=tenants,
        events=events,
        feeds=feeds,
        audit=Audit(store),
        access=access,
        credentials=Credentials(store, access, clock),
        sessions=Sessions(store, access, clock),
        members=Members(store, access),
        users=Users(store, access),
        blobs=Blobs(store, objects, tally=tally, bytes_max=most),
        uploads=Uploads(store, objects, bucket, tally=tally, bytes_max=most),
        collector=Collector(
            store,
            objects,
            every_seconds=settings.collect_seconds,
            grace_seconds=settings.collect_grace_seconds,
            tally=tally,
        ),
        scrub=Scrub(store, objects, clock, bytes_per_second=settings.scrub_bytes_per_second, tally=tally),
        stocktaking=Stocktaking(store, objects, database=home.database, tally=tally),
        bucket=bucket,
        signer=Signer(key, clock),
        provider=None if settings.oidc_issuer is None else Provider(settings, clock),
        default_tenant=await tenants.ensure_default(),
        engine="postgres" if isinstance(store, PostgresStore) else "sqlite",
        stop_waiting=store.stop_waiting if isinstance(store, PostgresStore) else lambda: None,
        keep_key=partial(_keep_key, store, fingerprint(key)),
    )


async def _keep_key(store: Store, key: bytes, replaces: bool) -> bool:
    """One server has a SQLite file, and may have any key."""
    return await store.keep_secret_key(key, replaces=replaces) if isinstance(store, PostgresStore) else True


async def expect_key(ingot: Ingot, *, new: bool = False) -> None:
    """Raises `SecretKeyUnusable` when other servers of the database have another key; a new one is theirs from now on.

    What one of them has signed the others would refuse.
    """
    if not await ingot.keep_key(new):
        raise SecretKeyUnusable(
            "the servers of this database have another secret key",
            hint="Set INGOT_SECRET_KEY to theirs; that of a server without one is in secret.key of its data folder. "
            "To change it, stop all servers, and start one with `ingot serve --new-secret-key`.",
        )


async def define_built_in(ingot: Ingot) -> None:
    """Have definitions of the handlers that come with Ingot, for all tenants: same work is done once.

    What is there stays as it was set, but for a version that is lower than that of the handler.
    """
    for one in BUILT_IN.values():
        wanted = Definition(type=one.type, timeout_seconds=one.timeout_seconds, reuse=one.reuse, version=one.version)
        await ingot.jobs.ensure_definition(wanted)


def _rules_of(settings: Settings) -> PeopleRules:
    return PeopleRules(
        issuer=settings.oidc_issuer,
        allowed_groups=frozenset(settings.oidc_allowed_groups),
        admin_groups=frozenset(settings.oidc_admin_groups),
        session_seconds=settings.session_seconds,
        idle_seconds=settings.session_idle_seconds,
        renew_seconds=settings.session_renew_seconds,
        token_days=settings.person_token_days,
    )


def _loops_of(ingot: Ingot, store: Store, settings: Settings, clock: Clock) -> list[Loop]:
    """All that runs in the background, in the order in which it ends."""
    scrub = [ingot.scrub] if settings.scrub_bytes_per_second else []
    return [
        *scrub,
        ingot.stocktaking,
        Verification(ingot.uploads.verifier, clock),
        ingot.collector,
        WorkerWatch(ingot.workers),
        WorkerTending(ingot.workers),
        Usage(store, ingot.access),
        EventRetention(store, days=settings.event_retention_days),
        Retention(store),
        Removal(store),
        Maintenance(store),
    ]


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


async def _end(loop: Loop) -> None:
    """What cannot be written at the end does not keep the store from closing."""
    try:
        await loop.stop()
    except StoreError as error:
        report("loop_not_ended_well", error, loop=loop.name)


async def _open_store(settings: Settings, clock: Clock) -> Store:
    if settings.database_url is None:
        return await SQLiteStore.open(settings.data, clock=clock, lease_seconds=settings.lease_seconds)
    if settings.database_owner_url is not None:
        await migrate(settings.database_owner_url)
    return await PostgresStore.open(
        settings.database_url, clock=clock, lease_seconds=settings.lease_seconds, pooled=settings.database_pooled
    )


async def _open_objects(settings: Settings, clock: Clock) -> LocalStore | BucketStore:
    if settings.s3_bucket is None:
        return await LocalStore.open(settings.data, clock=clock, spare_bytes=settings.spare_bytes)
    from ingot.objects.s3 import BucketStore  # noqa: PLC0415 - it takes long, and few need it

    return await BucketStore.open(
        bucket=settings.s3_bucket,
        endpoint=settings.s3_endpoint,
        public_endpoint=settings.s3_public_endpoint,
        access_key=settings.s3_access_key or "",
        secret_key=settings.s3_secret_key or "",
        region=settings.s3_region,
        prefix=settings.s3_prefix or "",
        clock=clock,
    )


async def _expect_objects(store: Store, objects: LocalStore | BucketStore) -> Home:
    """Have the database know its object store, and that its database.

    Raises `ObjectsElsewhere` when the bytes of the blobs are not here: they would all be missing. `StoreMisconfigured`
    when what is here is another database's: each would take away what the other one has.
    """
    home = await store.keep_objects(KeepObjects(store_id=objects.store_id))
    if home.store_id != objects.store_id:
        raise ObjectsElsewhere
    if await objects.belong_to(home.database) != home.database:
        raise StoreMisconfigured(
            "The blobs in this folder or bucket are those of another database.",
            hint="Use another INGOT_S3_PREFIX, or another INGOT_DATA. If the other database is gone for good, delete "
            "the `database.id` beside its blobs: they go too then, within days.",
        )
    return home


async def check_database(settings: Settings) -> Literal["server", "worker"] | None:
    """Look whether the database that the settings name can be worked with, and as whom; nothing is changed in it.

    Raises what opening it would.
    """
    if settings.database_url is None:
        return None
    opened: Store | Direct
    try:
        opened = await PostgresStore.open(
            settings.database_url,
            clock=SystemClock(),
            lease_seconds=settings.lease_seconds,
            pooled=settings.database_pooled,
            connections=1,
        )
    except StoreMisconfigured as error:
        try:
            opened = await Direct.open(
                settings.database_url, instance="doctor", lease=1, connections=1, pooled=settings.database_pooled
            )
        except StoreMisconfigured:
            raise error from None
    await opened.close()
    return "worker" if isinstance(opened, Direct) else "server"


def check_room(settings: Settings) -> None:
    """Look whether the disk of the data folder has room for blobs, where they are there. Raises `StorageFull`."""
    if settings.s3_bucket is None:
        Room(Files(), str(settings.data), settings.spare_bytes).expect(0)


async def check_bucket(settings: Settings) -> None:
    """Look whether the bucket that the settings name can be worked with; nothing is left in it.

    Raises what opening it would.
    """
    if settings.s3_bucket is not None:
        await (await _open_objects(settings, SystemClock())).close()


def runner_of(
    worker: Worker,
    settings: ClientSettings | None = None,
    *,
    drain_seconds: float = DRAIN_SECONDS,
    hours: Hours | None = None,
    echo: bool = False,
) -> Runner:
    """A runner of these handlers, with the server or the database that the settings name.

    To a database it comes with its role, to a server with a worker credential, or else with a token. Each process is an
    instance of its own. Raises `InvalidInput`, `SettingsError`, or what `find_place` does.
    """
    known = settings or read_client_settings()
    if not worker.handlers:
        raise InvalidInput("the worker has no handlers", hint='Give it some with @worker.handler("type").')
    for handler in worker.handlers.values():
        if handler.isolate:
            check_isolated(handler)
    if (known.worker_id is None) != (known.worker_secret is None):
        given, missing = ("SECRET", "ID") if known.worker_id is None else ("ID", "SECRET")
        raise SettingsError(
            f"INGOT_WORKER_{given} is set, and INGOT_WORKER_{missing} is not",
            hint="Set both, as they were shown when the credential was made, or neither, and INGOT_TOKEN.",
        )
    instance = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    if known.database_url is not None:
        entrance = _entrance_of(known, known.database_url, instance)
        desk = NoFileDesk() if known.token is None else desk_of(find_place(settings=known))
        return Runner(
            worker, lambda: PostgresBoard(entrance), drain_seconds=drain_seconds, hours=hours, echo=echo, desk=desk
        )
    if known.worker_id is not None and known.worker_secret is not None:
        name = f"{known.worker_id}/{instance}"
        place = find_place(worker=(name, known.worker_secret), settings=known)
    else:
        name = instance
        place = find_place(settings=known)
    return Runner(
        worker,
        lambda: board_of(place, name),
        drain_seconds=drain_seconds,
        hours=hours,
        echo=echo,
        desk=desk_of(place),
    )


def board_of(place: Place, worker_id: str) -> Board:
    """The server at a place, as this worker sees it."""
    return HttpBoard(place, worker_id)


def desk_of(place: Place) -> FileDesk:
    """The server at a place, as attempts see it that move files."""
    return HttpFileDesk(place)


def _entrance_of(known: ClientSettings, url: str, instance: str) -> Entrance:
    """How a worker comes to its database. `INGOT_SERVER_URL` beside it is for files, and clients that handlers make."""
    if known.worker_id is not None or known.worker_secret is not None:
        raise SettingsError(
            "INGOT_DATABASE_URL and a worker credential are both set; a worker comes with one of them",
            hint="Leave out INGOT_DATABASE_URL to work over HTTP, or INGOT_WORKER_ID and INGOT_WORKER_SECRET.",
        )
    return Entrance(url=url, instance=instance, lease_seconds=known.lease_seconds, pooled=known.database_pooled)


async def run_until_told(runner: Runner) -> None:
    """Run it until TERM or Ctrl-C, which let it finish; a second one ends it at once."""
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()

    def told() -> None:
        if stopping.is_set():
            os._exit(EXIT_AT_ONCE)
        stopping.set()

    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, told)
    await runner.run(stopping)
    if runner.is_busy:  # With a thread that does not end this process would not either.
        log.warning("handlers_left_behind", hint="Their jobs were given back. Have them look at job.canceled.")
        os._exit(0)


def run(worker: Worker, *, drain_seconds: float = DRAIN_SECONDS) -> None:
    """Run the handlers of a worker in this process until TERM or Ctrl-C, as `ingot worker` does."""
    runner = runner_of(worker, drain_seconds=drain_seconds)
    try:
        uvloop.run(run_until_told(runner))
    except IngotError as error:
        if not runner.is_busy:
            raise
        log.error("worker_ended", code=error.code, detail=error.detail, hint=error.hint)
        os._exit(1)  # The error would reach nobody while threads go on that do not end.
