"""Transactions that hold back events: those of workers and applications are ended, and others are reported."""

from __future__ import annotations

import time
from typing import Final

import msgspec
import structlog

from ingot.engines.postgres.connection import Database
from ingot.engines.postgres.function_calls import CALL
from ingot.engines.postgres.metrics import Horizon

CHECK_SECONDS: Final = 5.0
WORKER_TRANSACTION_SECONDS_MAX: Final = 30.0  # More than a call of our worker takes.
APP_TRANSACTION_SECONDS_MAX: Final = 300.0
HELD_BACK_SECONDS: Final = 60.0  # Events that are held back for longer are reported.
log = structlog.get_logger("ingot.postgres")


class TransactionRisks(msgspec.Struct, frozen=True):
    """Properties of a database by which transactions can hold back the events of all tenants.

    `unlimited_roles` are the roles of workers and applications whose long transactions servers cannot end.
    """

    unlimited_roles: list[str]
    can_prepare: bool
    oldest_seconds: float


class TransactionWatch:
    """Limits how long transactions of workers and applications hold back the events of all tenants.

    A role can switch off its own timeouts, so the server ends its session. A transaction of another role, or of one
    that the server may not end, is reported once.
    """

    def __init__(self, db: Database, *, app_seconds_max: float) -> None:
        self._db = db
        self._app_seconds_max = app_seconds_max
        self._horizon = Horizon()
        self._checked_at = time.monotonic()
        self._reported = ""

    async def run_if_due(self) -> None:
        """Run if the last run was long enough ago."""
        if time.monotonic() - self._checked_at > CHECK_SECONDS:
            self._checked_at = time.monotonic()
            await self.run_once()

    async def run_once(self) -> None:
        """End transactions that are too old, and report the oldest one if it holds back events for too long."""
        limits = WORKER_TRANSACTION_SECONDS_MAX, self._app_seconds_max
        for role, tenant, seconds in await self._db.call(CALL.end_long_transactions, *limits):
            log.warning("transaction_ended", role=role, tenant_id=tenant, seconds=round(seconds))
        seconds = await self._horizon.measure(self._db)
        if seconds > HELD_BACK_SECONDS and self._horizon.oldest != self._reported:
            self._reported = self._horizon.oldest
            log.warning(
                "events_held_back",
                transaction=self._horizon.oldest,
                seconds=round(seconds),
                hint="Find it in the column backend_xid of pg_stat_activity, or in pg_prepared_xacts, and end it.",
            )
