"""An open store with the services of all rooms."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from ingot.blobs.counters import BlobCounters
from ingot.blobs.garbage_collector import READ_SECONDS, GarbageCollector
from ingot.blobs.model import StoreIdentity
from ingot.blobs.orphan_sweep import OrphanSweep
from ingot.blobs.ports import ObjectStore, SigningStore
from ingot.blobs.scrub import Scrub
from ingot.blobs.servers import ServerRegistration
from ingot.blobs.service import Blobs
from ingot.blobs.uploads import Uploads
from ingot.blobs.verification import VerificationLoop
from ingot.events.audit_service import Audit
from ingot.events.feeds import Feeds
from ingot.events.ids import EventIds
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
from ingot.kernel.cursor_cipher import CursorCipher
from ingot.kernel.errors import StoreError
from ingot.kernel.ids import new_id
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


BUCKET_URL_SECONDS_MAX: Final = 3600  # Validity of signed URLs to read objects of a bucket.


class Ingot(msgspec.Struct, frozen=True, kw_only=True):
    """An open store with the services of all rooms."""

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
    object_store: ObjectStore
    bucket: SigningStore | None  # The object store if it is a bucket, which clients read and write with signed URLs.
    bucket_url_seconds: int
    signer: Signer
    cursors: CursorCipher
    secrets: Secrets
    provider: Provider | None
    default_tenant: Tenant
    engine: Literal["sqlite", "postgres"]
    data: Path  # The data folder, which may be missing if nothing is stored in it.
    expect_fitting_schema: Callable[[], None]  # Raises `SchemaMismatch` if a newer build has migrated the database.
    stop_waiting: Callable[[], None]  # Stops retries of an unavailable database, so that the server can end.
    register_secret_key: Callable[[bool], Awaitable[bool]]  # See `require_same_secret_key`.


@asynccontextmanager
async def open(  # noqa: A001 - read as `ingot.open`
    data: Path | str | None = None,
    *,
    settings: Settings | None = None,
    clock: Clock | None = None,
    maintenance: bool = True,
    reserve: bool = False,
    wait_seconds: float = 0.0,
) -> AsyncIterator[Ingot]:
    """Open the store, and close it at the end of the block. A missing data folder is created.

    The store is in the data folder, or, with a `database_url` in the settings, in that PostgreSQL database, which is
    migrated first if there is a `database_owner_url`. Without `settings`, they are read from the environment. `data`
    replaces their folder and cannot be combined with a `database_url`. With `maintenance=False`, no background loops
    run: due jobs and expired leases wait for a claim, or for a call of `jobs.maintain()`. With `reserve`, a store in
    the data folder reserves space for use when the disk is full. `wait_seconds` is how long to wait for a database that
    is unavailable.
    """
    configure_logs()
    settings = _settings_for(data, settings or read_settings())
    clock = clock or SystemClock()
    store = await open_store(settings, clock, reserve=reserve, wait_seconds=wait_seconds)
    objects: AnyObjectStore | None = None
    registration: ServerRegistration | None = None
    try:
        objects = await open_object_store(settings, clock)
        # A process that does not renew its registration would soon be considered gone.
        server = new_id() if maintenance or store.is_exclusive else None
        grace_seconds = settings.collect_grace_seconds
        store_identity = await bind_object_store(store, objects, server=server, grace_seconds=grace_seconds)
        if server is not None:
            registration = ServerRegistration(store, server=server, store_id=objects.store_id)
            await registration.run_once()
        ingot = await _build_services(store, objects, store_identity, settings, clock, server=server)
        loops = _background_loops(ingot, store, settings, clock) if maintenance else []
        if registration is not None and not store.is_exclusive:
            loops.append(registration)
        for loop in loops:
            loop.start()
        if maintenance and store.engine == "postgres":
            # The listener stops with the store: until then, it notifies other processes of released jobs.
            store.listener.start()
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
        if registration is not None and not store.is_exclusive:
            await registration.unregister()
        if objects is not None:
            await objects.close()
        await store.close()


def _settings_for(data: Path | str | None, settings: Settings) -> Settings:
    if data is None:
        return settings
    if settings.database_url is not None:
        raise SettingsError(
            f"open() was called with the folder {str(data)!r}, but INGOT_DATABASE_URL is set",
            hint="Use a data folder or a database, not both.",
        )
    return msgspec.structs.replace(settings, data=Path(data))


async def _build_services(
    store: EngineStore,
    objects: AnyObjectStore,
    store_identity: StoreIdentity,
    settings: Settings,
    clock: Clock,
    *,
    server: str | None,
) -> Ingot:
    tenants, authenticator = Tenants(store), Authenticator(store, clock, _people_rules(settings))
    jobs, events = Jobs(store, lease_seconds=settings.lease_seconds), Events(store)
    workers = Workers(store, jobs, lease_seconds=settings.lease_seconds)
    await workers.refresh_draining_workers()
    keys = load_secret_keys(settings.data, settings.secret_key)
    cursors = CursorCipher(keys)
    feeds = Feeds(events, clock, load_stats=jobs.summary, seal_id=EventIds(cursors).seal)
    store.on_event(feeds.notify)
    tenants.on_changed(authenticator.invalidate)
    for callback in (lambda _: authenticator.invalidate(), jobs.end_tenant_waits, workers.end_tenant_waits):
        tenants.on_removed(callback)
    bucket = None if isinstance(objects, LocalStore) else objects
    counters, bytes_max = BlobCounters(), settings.max_blob_bytes
    # The bucket serves these URLs without contacting the server, so they must expire before the blob can be collected.
    bucket_url_seconds = min(BUCKET_URL_SECONDS_MAX, int(settings.collect_grace_seconds - READ_SECONDS))
    return Ingot(
        jobs=jobs,
        workers=workers,
        tenants=tenants,
        events=events,
        feeds=feeds,
        audit=Audit(store),
        authenticator=authenticator,
        credentials=Credentials(store, authenticator, clock),
        sessions=Sessions(store, authenticator, clock),
        members=Members(store, authenticator),
        users=Users(store, authenticator),
        blobs=Blobs(store, objects, counters=counters, bytes_max=bytes_max, server=server),
        uploads=Uploads(store, objects, bucket, counters=counters, bytes_max=bytes_max),
        garbage_collector=GarbageCollector(
            store,
            objects,
            every_seconds=settings.collect_seconds,
            grace_seconds=settings.collect_grace_seconds,
            read_seconds=READ_SECONDS if bucket is None else bucket_url_seconds + READ_SECONDS,
            counters=counters,
        ),
        scrub=Scrub(store, objects, clock, bytes_per_second=settings.scrub_bytes_per_second, counters=counters),
        orphan_sweep=OrphanSweep(store, objects, database_id=store_identity.database_id, counters=counters),
        object_store=objects,
        bucket=bucket,
        bucket_url_seconds=bucket_url_seconds,
        signer=Signer(keys[0], clock),
        cursors=cursors,
        secrets=Secrets(store, keys),
        provider=_build_provider(settings, clock),
        default_tenant=await tenants.ensure_default(),
        engine=store.engine,
        data=settings.data,
        expect_fitting_schema=store.expect_fitting_schema if store.engine == "postgres" else lambda: None,
        stop_waiting=store.stop_retrying if store.engine == "postgres" else lambda: None,
        register_secret_key=partial(_register_secret_key, store, key_fingerprint(keys[0])),
    )


async def _register_secret_key(store: EngineStore, fingerprint: bytes, replace: bool) -> bool:
    """Return whether the servers of this store use the key, after replacing theirs if `replace` is set.

    This is always true on SQLite, where there is only one server.
    """
    return await store.register_secret_key(fingerprint, replace=replace) if store.engine == "postgres" else True


async def require_same_secret_key(ingot: Ingot, *, replace: bool = False) -> None:
    """Raise `SecretKeyUnusable` if other servers of the database use another secret key.

    Otherwise, each server would reject what others have signed. With `replace`, the key of this server replaces theirs.
    """
    if not await ingot.register_secret_key(replace):
        raise SecretKeyUnusable(
            "the other servers of this database use a different secret key",
            hint="Set INGOT_SECRET_KEY to their key. A server without this setting keeps its key in secret.key in its "
            "data folder. To change the key, stop all servers and start one with INGOT_SECRET_KEY=new,old and "
            "--new-secret-key.",
        )


async def define_built_in_types(ingot: Ingot) -> None:
    """Create definitions for the built-in handlers for all tenants, with which identical jobs are reused.

    Existing definitions are unchanged, except that a version lower than that of the handler is raised.
    """
    for handler in BUILT_IN_HANDLERS.values():
        definition = Definition(
            type=handler.type,
            timeout_seconds=handler.timeout_seconds,
            reuse=handler.reuse,
            version=handler.version,
        )
        await ingot.jobs.ensure_definition(definition)


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
    from ingot.outbound.provider import Provider  # noqa: PLC0415 - slow to import and rarely needed

    prepare_structs()
    return Provider(settings, clock)


def _background_loops(ingot: Ingot, store: EngineStore, settings: Settings, clock: Clock) -> list[Loop]:
    """Return all background loops, in the order in which they are stopped."""
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
    """Stop a loop. A failed write at its end is only logged, so that the store can be closed."""
    try:
        await loop.stop()
    except StoreError as error:
        report("loop_stop_failed", error, loop=loop.name)
