"""Requests for bulk actions on jobs."""

from __future__ import annotations

from ingot.jobs.bulk_actions import STEP_JOBS_DEFAULT
from ingot.wire.field_types import AttemptCount, Priority, Timestamp
from ingot.wire.jobs import JobsFilter, PageLimit, RequestStruct


class BulkActionRequest(RequestStruct, frozen=True, kw_only=True, tag_field="action"):
    """An action on all jobs that fit a filter. An empty filter needs `all`."""

    filter: JobsFilter = JobsFilter()
    """Filter that selects the jobs."""
    all: bool = False
    """Must be true if the filter is empty, to confirm that all jobs are meant."""
    dry_run: bool = False
    """Whether to return a preview and change nothing."""
    limit: PageLimit = STEP_JOBS_DEFAULT
    """Maximum number of jobs to process with this request."""
    cursor: str | None = None
    """The `next_cursor` of the previous response, to continue."""


class CancelJobsRequest(BulkActionRequest, frozen=True, kw_only=True, tag="cancel"):
    """Cancel waiting jobs, and ask running jobs to stop."""


class RetryJobsRequest(BulkActionRequest, frozen=True, kw_only=True, tag="retry"):
    """Run finished jobs again. Without a status in the filter, only dead jobs are retried."""

    reset_attempts: bool = False
    """Whether to set failures and crashes back to 0."""
    priority: Priority | None = None
    """New priority, from 1 (critical) to 5 (background)."""
    max_attempts: AttemptCount | None = None
    """New number of failures after which a job is dead."""
    run_at: Timestamp | None = None
    """Time before which the jobs do not start."""


class ChangeJobsRequest(BulkActionRequest, frozen=True, kw_only=True, tag="change"):
    """Change the priority of waiting jobs."""

    priority: Priority
    """New priority, from 1 (critical) to 5 (background)."""
