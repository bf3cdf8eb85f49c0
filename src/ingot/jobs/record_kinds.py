"""The record kinds of definitions and pauses. Engines cache these records for enqueueing, claiming and settling."""

from __future__ import annotations

from typing import Final

import msgspec

from ingot.jobs import checks
from ingot.jobs.model import Definition, Pause
from ingot.records.kinds import RecordKind
from ingot.records.model import Record

TYPES_MAX: Final = 10_000


class PauseBody(msgspec.Struct, frozen=True):
    """The body of a pause. `by` names who paused the type."""

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
    """Return a record as a pause."""
    return Pause(type=record.name, since=record.created_at, by=record.body.by)
