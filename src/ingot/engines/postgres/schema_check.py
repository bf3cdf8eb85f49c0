"""Checks whether this program fits the schema of a database, when it opens the database and while it runs.

A program does not fit a schema of an earlier revision than its own. It fits a later one, unless that excludes it, or
lacks a function that it calls, with the same parameters and columns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import asyncpg
import structlog

from ingot.engines.postgres.connection import SIGNATURE_ERRORS, UNREACHABLE_ERRORS, Database, short_text
from ingot.engines.postgres.function_calls import CALL
from ingot.engines.postgres.revision import REVISION, AppliedRevision, granted_functions, migrations, schema_digest
from ingot.engines.postgres.sql import SQL
from ingot.kernel.errors import StoreMisconfigured, StoreTooNew
from ingot.kernel.logs import report

MIGRATE_HINT: Final = (
    "Run `ingot database migrate` of this version, or start a server of this version with INGOT_DATABASE_OWNER_URL, "
    "with the URL of a role that can create roles and schemas."
)
log = structlog.get_logger("ingot.postgres")


def expect_migrations(newest: int) -> None:
    """Raise `StoreMisconfigured` if a database, whose newest migration has this number, lacks migrations."""
    missing = [f"{migration.number:04}_{migration.name}" for migration in migrations() if migration.number > newest]
    if missing:
        names = missing[0] if len(missing) == 1 else f"{missing[0]} to {missing[-1]}"
        raise StoreMisconfigured(
            f"The database is at schema {newest}; this program needs schema {migrations()[-1].number}. "
            f"Missing: {names}.",
            hint=MIGRATE_HINT,
        )


def expect_not_newer(applied: AppliedRevision, newest: int) -> None:
    """Raise `StoreTooNew` if a later version than this one has migrated the database."""
    supported = migrations()[-1].number
    if newest > supported:
        raise StoreTooNew(f"The database is at schema {newest}; this program supports up to {supported}.")
    if applied.revision > REVISION:
        raise StoreTooNew(
            f"The schema of the database has revision {applied.revision}, from {applied.origin}; this program "
            f"has revision {REVISION}."
        )


async def check_schema(connection: Any, role: str, *, newest: int | None = None, thorough: bool = False) -> None:
    """Check that this program, with this role, fits the schema of a database.

    `newest` is the number of the newest migration. The functions are compared only if another build has applied them,
    or with `thorough`. Raises `StoreMisconfigured` or `StoreTooNew`.
    """
    applied = AppliedRevision.parse(await connection.fetchval(SQL.applied_revision))
    if newest is not None:
        expect_migrations(newest)
    if applied.revision < REVISION:
        raise StoreMisconfigured(
            f"The schema of the database has revision {applied.revision}, from {applied.origin}; this program "
            f"needs revision {REVISION}.",
            hint=MIGRATE_HINT,
        )
    if applied.revision == REVISION and newest is not None:
        expect_not_newer(applied, newest)
    if applied.oldest > REVISION:
        raise StoreTooNew(
            f"The schema of the database has revision {applied.revision}, from {applied.origin}, for programs "
            f"from revision {applied.oldest} on; this program has revision {REVISION}."
        )
    if thorough or applied.digest != schema_digest():
        await _check_functions(connection, role, applied)


async def _check_functions(connection: Any, role: str, applied: AppliedRevision) -> None:
    """Let the database parse every call of this role, in one round trip. Raises `StoreTooNew`."""
    calls = (vars(CALL)[name] for name in granted_functions(role) if name in vars(CALL))
    try:
        await connection.execute("".join(f"PREPARE ingot_check AS {call}; DEALLOCATE ingot_check;" for call in calls))
    except SIGNATURE_ERRORS as error:
        raise StoreTooNew(
            f"The schema of the database has revision {applied.revision}, from {applied.origin}; this program "
            f"has revision {REVISION}, and what it calls has changed: {short_text(error)}."
        ) from error


class SchemaWatch:
    """Checks whether a running program still fits the schema of its database.

    While it does not, calls raise `SchemaMismatch`. `on_mismatch` is called whenever that begins.
    """

    def __init__(self, db: Database, role: str, *, on_mismatch: Callable[[], None] = lambda: None) -> None:
        self._db = db
        self._role = role
        self._on_mismatch = on_mismatch
        self._checked: str | None = None

    async def run_after_poll(self, comment: str | None) -> None:
        """Check the schema if its comment at the last poll, or a rejected call, gives reason to."""
        if comment != self._checked or self._db.rejected is not None or self._db.mismatch is not None:
            await self.run_once()

    async def run_once(self) -> None:
        """Check the schema if it was changed, or if a call was rejected. If it cannot be read, nothing changes."""
        db, comment = self._db, self._checked
        try:
            comment = await db.inspect_once(lambda connection: connection.fetchval(SQL.applied_revision))
            rejected, is_suspect = db.rejected, db.rejected is not None or db.mismatch is not None
            if comment == self._checked and not is_suspect:
                return
            await db.inspect_once(partial(check_schema, role=self._role, thorough=is_suspect))
        except UNREACHABLE_ERRORS:
            return
        except asyncpg.PostgresError as error:
            report("schema_not_checked", error)
            return
        except (StoreTooNew, StoreMisconfigured) as error:
            was_fitting, db.mismatch = db.mismatch is None, error.detail
            if was_fitting:
                log.error("schema_mismatch", detail=error.detail, hint=error.hint)
                self._on_mismatch()
        else:
            if db.mismatch is not None:
                log.info("schema_fits")
            elif rejected is not None:
                log.error("statement_rejected", detail=rejected)
            db.mismatch = None
        self._checked, db.rejected = comment, None
