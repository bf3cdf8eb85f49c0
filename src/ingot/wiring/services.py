"""An open store, with everything that the rooms do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from ingot.blobs.counters import BlobCounters
from ingot.blobs.garbage_collector import GarbageCollector
from ingot.blobs.model import StoreIdentity
from ingot.blobs.orphan_sweep import OrphanSweep
from ingot.blobs.ports import ObjectStore, SigningStore
from ingot.blobs.scrub import Scrub
from ingot.blobs.service import Blobs
from ingot.blobs.uploads import Uploads
from ingot.blobs.verification import VerificationLoop
from ingot.events.audit_service import Audit
from ingot.events.feeds import Feeds
from ingot.events.retention import EventRetention
from ingot.events.service import Events
from ingot.http.signing import Signer
from ingot.identity.authenticator import Authenticator
from ingot.identity.credential_service import Credentials
from ingot.identity.last_used import LastUsedRecorder
from ingot.identity.members import Members
from ingot.identity.model import Tenant
from ingot.identity.people import PeopleRules
from ingot.identity.secret_values import Secrets
from ingot.identity.sessions import Sessions
from ingot.identity.tenant_removal import TenantRemoval
from ingot.identity.tenants import Tenants
from ingot.identity.users import Users
from ingot.jobs.maintenance import JobMaintenance
from ingot.jobs.model import Definition
from ingot.jobs.retention import JobRetention
from ingot.jobs.service import Jobs
from ingot.jobs.worker_loops import HeartbeatPoller, WorkerMaintenance
from ingot.jobs.workers import Workers
from ingot.kernel.clock import Clock, SystemClock
from ingot.kernel.errors import StoreError
from ingot.kernel.logs import configure_logs, report
from ingot.kernel.loops import Loop
from ingot.kernel.msgspec_warmup import prepare_structs
from ingot.kernel.secret_key import SecretKeyUnusable, key_fingerprint, load_secret_keys
from ingot.objects.local import LocalStore
from ingot.settings import Settings, SettingsError, read_settings
from ingot.wiring.stores import bind_object_store, open_object_store, open_store
from ingot.worker.handlers import BUILT_IN_HANDLERS

if TYPE_CHECKING:
    from ingot.outbound.provider import Provider
    from ingot.wiring.stores import AnyObjectStore, EngineStore


class Ingot(msgspec.Struct, frozen=True, kw_only=True):
    """An open store, room by room."""

    jobs: Jobs
    workers: Workers
    tenants: Tenants
    events: Events
    feeds: Feeds
    audit: Audit
    authenticator: Authenticator
    credentials: Credentials
    sessions: Sessions
    members: Members
    users: Users
    blobs: Blobs
    uploads: Uploads
    garbage_collector: GarbageCollector
    scrub: Scrub
    orphan_sweep: OrphanSweep
    object_store: ObjectStore  # Where the bytes of large blobs lie.
    bucket: SigningStore | None  # Where clients read and write by themselves.
    signer: Signer
    secrets: Secrets
    provider: Provider | None
    default_tenant: Tenant
    engine: Literal["sqlite", "postgres"]
    stop_waiting: Callable[[], None]  # For a database that is away; called when the end begins.
    register_secret_key: Callable[[bool], Awaitable[bool]]  # Whether servers have this key; with true, from now on.


@asynccontextmanager
async def open(  # noqa: A001 - read as `ingot.open`
    data: Path | str | None = None,
    *,
    settings: Settings | None = None,
    clock: Clock | None = None,
    maintenance: bool = True,
) -> AsyncIterator[Ingot]:
    """Open the store, made when missing, and close it at the end of the block.

    The store is in the data folder, or, with a `database_url` in the settings, in that PostgreSQL database, which is
    migrated first if there is a `database_owner_url`. Without `settings`, they are read from the environment. `data`
    replaces their folder and cannot be combined with a `database_url`. With `maintenance=False`, no background loops
    run: due jobs and expired leases wait for a claim, or for `jobs.tend()`.
    """
    configure_logs()
    settings = _settings_for(data, settings or read_settings())
    clock = clock or SystemClock()
    store = await open_store(settings, clock)
    objects: AnyObjectStore | None = None
    try:
        objects = await open_object_store(settings, clock)
        home = await bind_object_store(store, objects)
        ingot = await _build_services(store, objects, home, settings, clock)
        loops = _background_loops(ingot, store, settings, clock) if maintenance else []
        for loop in loops:
            loop.start()
        if maintenance and store.engine == "postgres":
            store.listener.start()  # It ends with the store: until then others are told what is given back.
        try:
            yield ingot
        finally:
            ingot.stop_waiting()
            ingot.workers.stop_waiting()
            for loop in loops:
                await _stop_loop(loop)
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


async def _build_services(
    store: EngineStore, objects: AnyObjectStore, home: StoreIdentity, settings: Settings, clock: Clock
) -> Ingot:
    tenants, access = Tenants(store), Authenticator(store, clock, _people_rules(settings))
    jobs, events = Jobs(store, lease_seconds=settings.lease_seconds), Events(store)
    workers = Workers(store, jobs, lease_seconds=settings.lease_seconds)
    await workers.refresh_draining_workers()
    feeds = Feeds(events, clock, load_stats=jobs.summary)
    store.on_event(feeds.notify)
    tenants.on_changed(access.invalidate)
    for let_go in (lambda _: access.invalidate(), jobs.end_tenant_waits, workers.end_tenant_waits):
        tenants.on_removed(let_go)
    bucket = None if isinstance(objects, LocalStore) else objects
    tally, most = BlobCounters(), settings.max_blob_bytes
    keys = load_secret_keys(settings.data, settings.secret_key)
    return Ingot(
        jobs=jobs,
        workers=workers,
        tenants=tenants,
        events=events,
        feeds=feeds,
        audit=Audit(store),
        authenticator=access,
        credentials=Credentials(store, access, clock),
        sessions=Sessions(store, access, clock),
        members=Members(store, access),
        users=Users(store, access),
        blobs=Blobs(store, objects, counters=tally, bytes_max=most),
        uploads=Uploads(store, objects, bucket, counters=tally, bytes_max=most),
        garbage_collector=GarbageCollector(
            store,
            objects,
            every_seconds=settings.collect_seconds,
            grace_seconds=settings.collect_grace_seconds,
            counters=tally,
        ),
        scrub=Scrub(store, objects, clock, bytes_per_second=settings.scrub_bytes_per_second, counters=tally),
        orphan_sweep=OrphanSweep(store, objects, database_id=home.database_id, counters=tally),
        object_store=objects,
        bucket=bucket,
        signer=Signer(keys[0], clock),
        secrets=Secrets(store, keys),
        provider=_build_provider(settings, clock),
        default_tenant=await tenants.ensure_default(),
        engine=store.engine,
        stop_waiting=store.stop_retrying if store.engine == "postgres" else lambda: None,
        register_secret_key=partial(_register_secret_key, store, key_fingerprint(keys[0])),
    )


async def _register_secret_key(store: EngineStore, key: bytes, replaces: bool) -> bool:
    """One server has a SQLite file, and may have any key."""
    return await store.register_secret_key(key, replace=replaces) if store.engine == "postgres" else True


async def require_same_secret_key(ingot: Ingot, *, replace: bool = False) -> None:
    """Raises `SecretKeyUnusable` when other servers of the database have another key; a new one is theirs from now on.

    What one of them has signed the others would refuse.
    """
    if not await ingot.register_secret_key(replace):
        raise SecretKeyUnusable(
            "the servers of this database have another secret key",
            hint="Set INGOT_SECRET_KEY to theirs; that of a server without one is in secret.key of its data folder. "
            "To change it, stop all servers, and start one with INGOT_SECRET_KEY=new,old and --new-secret-key.",
        )


async def define_built_in_types(ingot: Ingot) -> None:
    """Have definitions of the handlers that come with Ingot, for all tenants: same work is done once.

    What is there stays as it was set, but for a version that is lower than that of the handler.
    """
    for one in BUILT_IN_HANDLERS.values():
        wanted = Definition(type=one.type, timeout_seconds=one.timeout_seconds, reuse=one.reuse, version=one.version)
        await ingot.jobs.ensure_definition(wanted)


def _people_rules(settings: Settings) -> PeopleRules:
    return PeopleRules(
        issuer=settings.oidc_issuer,
        allowed_groups=frozenset(settings.oidc_allowed_groups),
        admin_groups=frozenset(settings.oidc_admin_groups),
        session_seconds=settings.session_seconds,
        idle_seconds=settings.session_idle_seconds,
        renew_seconds=settings.session_renew_seconds,
        token_days=settings.person_token_days,
    )


def _build_provider(settings: Settings, clock: Clock) -> Provider | None:
    if settings.oidc_issuer is None:
        return None
    from ingot.outbound.provider import Provider  # noqa: PLC0415 - it takes long, and few need it

    prepare_structs()
    return Provider(settings, clock)


def _background_loops(ingot: Ingot, store: EngineStore, settings: Settings, clock: Clock) -> list[Loop]:
    """All that runs in the background, in the order in which it ends."""
    scrub = [ingot.scrub] if settings.scrub_bytes_per_second else []
    return [
        *scrub,
        ingot.orphan_sweep,
        VerificationLoop(ingot.uploads.verifier, clock),
        ingot.garbage_collector,
        HeartbeatPoller(ingot.workers),
        WorkerMaintenance(ingot.workers),
        LastUsedRecorder(store, ingot.authenticator),
        EventRetention(store, days=settings.event_retention_days),
        JobRetention(store),
        TenantRemoval(store),
        JobMaintenance(store),
    ]


async def _stop_loop(loop: Loop) -> None:
    """What cannot be written at the end does not keep the store from closing."""
    try:
        await loop.stop()
    except StoreError as error:
        report("loop_not_ended_well", error, loop=loop.name)
