"""Checks of the database, disk and bucket in the settings, for `ingot doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingot.kernel.clock import MICROS, SystemClock, WallClock
from ingot.kernel.errors import StoreMisconfigured
from ingot.objects.free_space import FreeSpace
from ingot.objects.layout import read_store_id
from ingot.objects.syscalls import Syscalls
from ingot.settings import Settings
from ingot.wiring.stores import objects_elsewhere_error, open_object_store

if TYPE_CHECKING:
    from ingot.engines.postgres.transaction_watch import TransactionRisks


async def check_database(settings: Settings) -> TransactionRisks | None:
    """Check that the database in the settings can be used, without changing it.

    Returns how transactions can hold back events if its role is that of a server, and `None` for a worker role. Raises
    what opening the database raises, and `ObjectsElsewhere` if a server with these settings would not start.
    """
    assert settings.database_url is not None
    from ingot.engines.postgres import PostgresStore  # noqa: PLC0415 - slow to import and rarely needed
    from ingot.engines.postgres.worker_database import WorkerDatabase  # noqa: PLC0415

    database: PostgresStore | WorkerDatabase
    try:
        database = await PostgresStore.open(
            settings.database_url,
            clock=SystemClock(),
            lease_seconds=settings.lease_seconds,
            pooled=settings.database_pooled,
            connections=1,
        )
    except StoreMisconfigured as error:
        try:
            database = await WorkerDatabase.open(
                settings.database_url, instance="doctor", lease=1, connections=1, pooled=settings.database_pooled
            )
        except StoreMisconfigured:
            raise error from None
    try:
        if isinstance(database, WorkerDatabase):
            return None
        conflict = await database.object_store_conflict(_object_store_id(settings))
        if conflict is not None:
            raise objects_elsewhere_error(in_use=conflict == "used")
        return await database.describe_transactions()
    finally:
        await database.close()


def _object_store_id(settings: Settings) -> str:
    """Return the ID of the object store in the settings. A blob folder that does not exist yet has none."""
    if settings.s3_bucket is None:
        return read_store_id(Syscalls(), settings.data) or ""
    from ingot.objects.s3 import bucket_store_id  # noqa: PLC0415 - slow to import

    return bucket_store_id(settings.s3_bucket, settings.s3_prefix or "")


def seconds_ahead(settings: Settings) -> float:
    """Return how far the latest time in the SQLite file is ahead of the clock of this machine; 0 if it is not.

    Small differences, which the server ignores, are 0 as well. Raises `StoreError` if the file cannot be read.
    """
    from ingot.engines.sqlite.store_folder import AHEAD_MICROS_MAX, read_newest_time  # noqa: PLC0415 - slow to import

    newest_time = None if settings.database_url is not None else read_newest_time(settings.data)
    ahead = 0 if newest_time is None else newest_time - WallClock().micros()
    return ahead / MICROS if ahead > AHEAD_MICROS_MAX else 0.0


def check_free_space(settings: Settings) -> None:
    """Check that the disk of the data folder has space for blobs, unless they are in a bucket. Raises `StorageFull`."""
    if settings.s3_bucket is None:
        FreeSpace(Syscalls(), str(settings.data), settings.spare_bytes).check(0)


async def check_bucket(settings: Settings) -> None:
    """Check that the bucket in the settings can be used, without leaving anything in it.

    Raises what opening the bucket raises.
    """
    if settings.s3_bucket is not None:
        await (await open_object_store(settings, SystemClock())).close()
