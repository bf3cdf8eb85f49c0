"""Definitions and pauses are records. Engines keep them at hand for orders, claims and settles."""

from __future__ import annotations

from typing import Final

import msgspec

from ingot.jobs import checks
from ingot.jobs.model import Definition, Pause
from ingot.records.kinds import RecordKind
from ingot.records.model import Record

TYPES_MAX: Final = 10_000


class PauseBody(msgspec.Struct, frozen=True):
    """Who paused a type."""

    by: str | None = None


DEFINITION_KIND: Final = RecordKind(
    name="definition", plural="definitions", body_type=Definition, check_name=checks.job_type, records_max=TYPES_MAX
)
PAUSE_KIND: Final = RecordKind(
    name="pause",
    plural="pauses",
    body_type=PauseBody,
    check_name=checks.job_type,
    audit_subject="type",
    put_verb="paused",
    delete_verb="resumed",
    records_max=TYPES_MAX,
)


def pause_from_record(record: Record[PauseBody]) -> Pause:
    """Return the pause that a record stands for."""
    return Pause(type=record.name, since=record.created_at, by=record.body.by)
