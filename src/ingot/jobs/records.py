"""Definitions and pauses are records. Engines keep them at hand for orders, claims and settles."""

from __future__ import annotations

from typing import Final

import msgspec

from ingot.jobs import checks
from ingot.jobs.model import Definition, Pause
from ingot.records.kinds import Kind
from ingot.records.model import Record

TYPES_MAX: Final = 10_000


class PauseBody(msgspec.Struct, frozen=True):
    """Who paused a type."""

    by: str | None = None


DEFINITION: Final = Kind(
    name="definition", plural="definitions", body=Definition, check_name=checks.job_type, records_max=TYPES_MAX
)
PAUSE: Final = Kind(
    name="pause",
    plural="pauses",
    body=PauseBody,
    check_name=checks.job_type,
    subject="type",
    put="paused",
    deleted="resumed",
    records_max=TYPES_MAX,
)


def pause_of(record: Record[PauseBody]) -> Pause:
    """Return the pause that a record stands for."""
    return Pause(type=record.name, since=record.created_at, by=record.body.by)
