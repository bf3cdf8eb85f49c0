"""The stores that the settings name. Each kind is read from disk when it is wanted: all of them take long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingot.blobs.errors import ObjectsElsewhere
from ingot.blobs.model import Home
from ingot.blobs.ports import KeepObjects
from ingot.kernel.clock import Clock
from ingot.kernel.errors import StoreMisconfigured
from ingot.kernel.structs import prepare_structs
from ingot.objects.local import LocalStore
from ingot.settings import Settings

if TYPE_CHECKING:
    from ingot.engines.postgres import PostgresStore
    from ingot.engines.sqlite import SQLiteStore
    from ingot.objects.s3 import BucketStore

    Store = SQLiteStore | PostgresStore
    Objects = LocalStore | BucketStore


async def open_store(settings: Settings, clock: Clock) -> Store:
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


async def open_objects(settings: Settings, clock: Clock) -> Objects:
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


async def expect_objects(store: Store, objects: Objects) -> Home:
    """Have the database know its object store, and that its database.

    Raises `ObjectsElsewhere` when the bytes of the blobs are not here: they would all be missing. `StoreMisconfigured`
    when what is here is another database's: each would take away what the other one has.
    """
    home = await store.run(KeepObjects(store_id=objects.store_id))
    if home.store_id != objects.store_id:
        raise ObjectsElsewhere
    if await objects.belong_to(home.database) != home.database:
        raise StoreMisconfigured(
            "The blobs in this folder or bucket are those of another database.",
            hint="Use another INGOT_S3_PREFIX, or another INGOT_DATA. If the other database is gone for good, delete "
            "the `database.id` beside its blobs: they go too then, within days.",
        )
    return home
