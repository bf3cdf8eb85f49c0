"""Looks whether what the settings name can be worked with, without opening it for good."""

from __future__ import annotations

from typing import Literal

from ingot.kernel.clock import SystemClock
from ingot.kernel.errors import StoreMisconfigured
from ingot.objects.free_space import FreeSpace
from ingot.objects.syscalls import Syscalls
from ingot.settings import Settings
from ingot.wiring.stores import open_object_store


async def check_database(settings: Settings) -> Literal["server", "worker"] | None:
    """Look whether the database that the settings name can be worked with, and as whom; nothing is changed in it.

    Raises what opening it would.
    """
    if settings.database_url is None:
        return None
    from ingot.engines.postgres import PostgresStore  # noqa: PLC0415 - it takes long, and few need it
    from ingot.engines.postgres.worker_database import WorkerDatabase  # noqa: PLC0415

    opened: PostgresStore | WorkerDatabase
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
            opened = await WorkerDatabase.open(
                settings.database_url, instance="doctor", lease=1, connections=1, pooled=settings.database_pooled
            )
        except StoreMisconfigured:
            raise error from None
    await opened.close()
    return "worker" if isinstance(opened, WorkerDatabase) else "server"


def check_free_space(settings: Settings) -> None:
    """Look whether the disk of the data folder has room for blobs, where they are there. Raises `StorageFull`."""
    if settings.s3_bucket is None:
        FreeSpace(Syscalls(), str(settings.data), settings.spare_bytes).check(0)


async def check_bucket(settings: Settings) -> None:
    """Look whether the bucket that the settings name can be worked with; nothing is left in it.

    Raises what opening it would.
    """
    if settings.s3_bucket is not None:
        await (await open_object_store(settings, SystemClock())).close()
