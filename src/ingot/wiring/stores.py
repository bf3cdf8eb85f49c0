"""The stores that the settings name. Each kind is read from disk when it is wanted: all of them take long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingot.blobs.errors import ObjectsElsewhere
from ingot.blobs.model import StoreIdentity
from ingot.blobs.ports import RegisterObjectStore
from ingot.kernel.clock import Clock
from ingot.kernel.errors import StoreMisconfigured
from ingot.kernel.msgspec_warmup import prepare_structs
from ingot.objects.local import LocalStore
from ingot.settings import Settings

if TYPE_CHECKING:
    from ingot.engines.postgres import PostgresStore
    from ingot.engines.sqlite import SQLiteStore
    from ingot.objects.s3 import BucketStore

    EngineStore = SQLiteStore | PostgresStore
    AnyObjectStore = LocalStore | BucketStore


async def open_store(settings: Settings, clock: Clock) -> EngineStore:
    """The store in the data folder, or in the database, which is migrated first when its owner is named."""
    if settings.database_url is None:
        from ingot.engines.sqlite import SQLiteStore  # noqa: PLC0415 - see above

        prepare_structs()
        return await SQLiteStore.open(settings.data, clock=clock, lease_seconds=settings.lease_seconds)
    from ingot.engines.postgres import PostgresStore, migrate  # noqa: PLC0415 - see above

    prepare_structs()
    if settings.database_owner_url is not None:
        await migrate(settings.database_owner_url)
    return await PostgresStore.open(
        settings.database_url, clock=clock, lease_seconds=settings.lease_seconds, pooled=settings.database_pooled
    )


async def open_object_store(settings: Settings, clock: Clock) -> AnyObjectStore:
    """Where the bytes of blobs are: in the data folder, or in a bucket."""
    if settings.s3_bucket is None:
        return await LocalStore.open(settings.data, clock=clock, spare_bytes=settings.spare_bytes)
    from ingot.objects.s3 import BucketStore  # noqa: PLC0415 - see above

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


async def bind_object_store(store: EngineStore, objects: AnyObjectStore) -> StoreIdentity:
    """Have the database know its object store, and that its database.

    Raises `ObjectsElsewhere` when the bytes of the blobs are not here: they would all be missing. `StoreMisconfigured`
    when what is here is another database's: each would take away what the other one has.
    """
    home = await store.run(RegisterObjectStore(store_id=objects.store_id))
    if home.store_id != objects.store_id:
        raise ObjectsElsewhere
    if await objects.register_owner(home.database_id) != home.database_id:
        raise StoreMisconfigured(
            "The blobs in this folder or bucket are those of another database.",
            hint="Use another INGOT_S3_PREFIX, or another INGOT_DATA. If the other database is gone for good, delete "
            "the `database.id` beside its blobs: they go too then, within days.",
        )
    return home
