"""Requests for actions on many jobs."""

from __future__ import annotations

from ingot.jobs.bulk_actions import STEP_JOBS_DEFAULT
from ingot.wire.field_types import AttemptCount, Priority, Timestamp
from ingot.wire.jobs import JobsFilter, PageLimit, RequestStruct


class BulkActionRequest(RequestStruct, frozen=True, kw_only=True, tag_field="action"):
    """What to do with the jobs that fit a filter; an empty one needs `all`."""

    filter: JobsFilter = JobsFilter()
    all: bool = False
    dry_run: bool = False
    limit: PageLimit = STEP_JOBS_DEFAULT
    cursor: str | None = None


class CancelJobsRequest(BulkActionRequest, frozen=True, kw_only=True, tag="cancel"):
    """Cancel those that wait, ask those that run to stop."""


class RetryJobsRequest(BulkActionRequest, frozen=True, kw_only=True, tag="retry"):
    """Run finished jobs again: the dead ones, unless the filter names a status."""

    reset_attempts: bool = False
    priority: Priority | None = None
    max_attempts: AttemptCount | None = None
    run_at: Timestamp | None = None


class ChangeJobsRequest(BulkActionRequest, frozen=True, kw_only=True, tag="change"):
    """Give those that wait another priority."""

    priority: Priority
