"""The database and object store in the settings. Each kind is imported only when it is used: imports are slow."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import structlog

from ingot.blobs.errors import ObjectsElsewhere
from ingot.blobs.model import StoreIdentity
from ingot.blobs.ports import RegisterObjectStore
from ingot.kernel.clock import MICROS, Clock
from ingot.kernel.errors import StoreError, StoreMisconfigured, StoreTooNew
from ingot.kernel.msgspec_warmup import prepare_structs
from ingot.objects.local import LocalStore
from ingot.settings import Settings

if TYPE_CHECKING:
    from ingot.engines.postgres import PostgresStore
    from ingot.engines.sqlite import SQLiteStore
    from ingot.objects.s3 import BucketStore

    EngineStore = SQLiteStore | PostgresStore
    AnyObjectStore = LocalStore | BucketStore

WAIT_PAUSE_SECONDS: Final = 0.5
WAIT_PAUSE_SECONDS_MAX: Final = 5.0
log = structlog.get_logger("ingot")


async def open_store(
    settings: Settings, clock: Clock, *, reserve: bool = False, wait_seconds: float = 0.0
) -> EngineStore:
    """Open the store in the data folder or database, and wait up to `wait_seconds` for an unavailable database.

    With a `database_owner_url`, the database is migrated first. With `reserve`, a store in the data folder reserves
    space for use when the disk is full.
    """
    loop = asyncio.get_running_loop()
    pause, ends_at = WAIT_PAUSE_SECONDS, loop.time() + wait_seconds
    while True:
        try:
            return await _open_store(settings, clock, reserve=reserve)
        except StoreError as error:
            is_unavailable = settings.database_url is not None and error.status == HTTPStatus.SERVICE_UNAVAILABLE
            if not is_unavailable or loop.time() + pause > ends_at:
                raise
            log.warning("waiting_for_database", code=error.code, detail=error.detail, hint=error.hint)
        await asyncio.sleep(pause)
        pause = min(2 * pause, WAIT_PAUSE_SECONDS_MAX)


async def _open_store(settings: Settings, clock: Clock, *, reserve: bool) -> EngineStore:
    if settings.database_url is None:
        from ingot.engines.sqlite import SQLiteStore  # noqa: PLC0415 - slow to import

        prepare_structs()
        return await SQLiteStore.open(
            settings.data,
            clock=clock,
            lease_seconds=settings.lease_seconds,
            reserve_bytes=_reserve_bytes(settings) if reserve else 0,
        )
    from ingot.engines.postgres import PostgresStore, migrate  # noqa: PLC0415 - slow to import

    prepare_structs()
    if settings.database_owner_url is not None:
        try:
            await migrate(settings.database_owner_url)
        except StoreTooNew as error:  # It keeps the schema of the later version, which may still serve this one.
            log.warning("migration_skipped", detail=error.detail)
    return await PostgresStore.open(
        settings.database_url,
        clock=clock,
        lease_seconds=settings.lease_seconds,
        pooled=settings.database_pooled,
        app_transaction_seconds_max=settings.app_transaction_seconds_max,
    )


def _reserve_bytes(settings: Settings) -> int:
    from ingot.engines.sqlite.disk_reserve import RESERVE_BYTES  # noqa: PLC0415 - slow to import

    return RESERVE_BYTES if settings.spare_bytes is None else min(RESERVE_BYTES, settings.spare_bytes)


async def open_object_store(settings: Settings, clock: Clock) -> AnyObjectStore:
    """Open the object store: the data folder, or a bucket."""
    if settings.s3_bucket is None:
        return await LocalStore.open(settings.data, clock=clock, spare_bytes=settings.spare_bytes)
    from ingot.objects.s3 import BucketStore  # noqa: PLC0415 - slow to import

    prepare_structs()
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


def objects_elsewhere_error(*, in_use: bool) -> ObjectsElsewhere:
    """Create the error for a server that must not use its object store with the database."""
    if not in_use:
        return ObjectsElsewhere()
    return ObjectsElsewhere(
        "a running server of this database, or one that was killed in the last 30 seconds, keeps its blobs in another "
        "folder or bucket"
    )


async def bind_object_store(
    store: EngineStore, objects: AnyObjectStore, *, server: str | None, grace_seconds: float | None = None
) -> StoreIdentity:
    """Register the object store and the `server` with the database, and the database with the object store.

    Raises `ObjectsElsewhere` if the blobs of the database are in another object store, where they would all be missing
    here, or if a running server uses another one. Raises `StoreMisconfigured` if the object store belongs to another
    database: each database would delete the objects of the other one.
    """
    store_identity = await store.run(
        RegisterObjectStore(
            store_id=objects.store_id,
            server=server,
            exclusive=objects.is_exclusive,
            grace=None if grace_seconds is None else round(grace_seconds * MICROS),
        )
    )
    if store_identity.store_id != objects.store_id:
        raise objects_elsewhere_error(in_use=store_identity.in_use)
    if await objects.register_owner(store_identity.database_id) != store_identity.database_id:
        raise StoreMisconfigured(
            "the blobs in this folder or bucket belong to another database",
            hint="Use a different INGOT_DATA or INGOT_S3_PREFIX. If the other database no longer exists, delete the "
            "file `database.id` next to its blobs. The blobs are then deleted within days.",
        )
    return store_identity
