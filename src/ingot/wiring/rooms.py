"""An open store, with everything that the rooms do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from ingot.blobs.collector import Collector
from ingot.blobs.model import Home
from ingot.blobs.ports import ObjectStore, SigningStore
from ingot.blobs.scrub import Scrub
from ingot.blobs.service import Blobs
from ingot.blobs.stocktaking import Stocktaking
from ingot.blobs.tally import Tally
from ingot.blobs.uploads import Uploads
from ingot.blobs.verification import Verification
from ingot.events.acts import Audit
from ingot.events.feeds import Feeds
from ingot.events.retention import EventRetention
from ingot.events.service import Events
from ingot.http.signing import Signer
from ingot.identity.access import Access
from ingot.identity.members import Members
from ingot.identity.model import Tenant
from ingot.identity.people import PeopleRules
from ingot.identity.removal import Removal
from ingot.identity.secret_values import Secrets
from ingot.identity.service import Tenants
from ingot.identity.sessions import Sessions
from ingot.identity.tokens import Credentials
from ingot.identity.usage import Usage
from ingot.identity.users import Users
from ingot.jobs.maintenance import Maintenance
from ingot.jobs.model import Definition
from ingot.jobs.retention import Retention
from ingot.jobs.rounds import WorkerTending, WorkerWatch
from ingot.jobs.service import Jobs
from ingot.jobs.workers import Workers
from ingot.kernel.clock import Clock, SystemClock
from ingot.kernel.errors import StoreError
from ingot.kernel.logs import configure_logs, report
from ingot.kernel.loops import Loop
from ingot.kernel.secret_key import SecretKeyUnusable, fingerprint, secret_keys
from ingot.kernel.structs import prepare_structs
from ingot.objects.local import LocalStore
from ingot.settings import Settings, SettingsError, read_settings
from ingot.wiring.stores import expect_objects, open_objects, open_store
from ingot.worker.handlers import BUILT_IN

if TYPE_CHECKING:
    from ingot.outbound.provider import Provider
    from ingot.wiring.stores import Objects, Store


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
    objects: ObjectStore  # Where the bytes of large blobs lie.
    bucket: SigningStore | None  # Where clients read and write by themselves.
    signer: Signer
    secrets: Secrets
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
    store = await open_store(settings, clock)
    objects: Objects | None = None
    try:
        objects = await open_objects(settings, clock)
        home = await expect_objects(store, objects)
        ingot = await _rooms_of(store, objects, home, settings, clock)
        loops = _loops_of(ingot, store, settings, clock) if tend else []
        for loop in loops:
            loop.start()
        if tend and store.engine == "postgres":
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


async def _rooms_of(store: Store, objects: Objects, home: Home, settings: Settings, clock: Clock) -> Ingot:
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
    keys = secret_keys(settings.data, settings.secret_key)
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
        objects=objects,
        bucket=bucket,
        signer=Signer(keys[0], clock),
        secrets=Secrets(store, keys),
        provider=_provider_of(settings, clock),
        default_tenant=await tenants.ensure_default(),
        engine=store.engine,
        stop_waiting=store.stop_waiting if store.engine == "postgres" else lambda: None,
        keep_key=partial(_keep_key, store, fingerprint(keys[0])),
    )


async def _keep_key(store: Store, key: bytes, replaces: bool) -> bool:
    """One server has a SQLite file, and may have any key."""
    return await store.keep_secret_key(key, replaces=replaces) if store.engine == "postgres" else True


async def expect_key(ingot: Ingot, *, new: bool = False) -> None:
    """Raises `SecretKeyUnusable` when other servers of the database have another key; a new one is theirs from now on.

    What one of them has signed the others would refuse.
    """
    if not await ingot.keep_key(new):
        raise SecretKeyUnusable(
            "the servers of this database have another secret key",
            hint="Set INGOT_SECRET_KEY to theirs; that of a server without one is in secret.key of its data folder. "
            "To change it, stop all servers, and start one with INGOT_SECRET_KEY=new,old and --new-secret-key.",
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


def _provider_of(settings: Settings, clock: Clock) -> Provider | None:
    if settings.oidc_issuer is None:
        return None
    from ingot.outbound.provider import Provider  # noqa: PLC0415 - it takes long, and few need it

    prepare_structs()
    return Provider(settings, clock)


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


async def _end(loop: Loop) -> None:
    """What cannot be written at the end does not keep the store from closing."""
    try:
        await loop.stop()
    except StoreError as error:
        report("loop_not_ended_well", error, loop=loop.name)
