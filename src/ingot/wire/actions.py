"""Requests for actions on many jobs."""

from __future__ import annotations

from ingot.jobs.actions import STEP_JOBS_DEFAULT
from ingot.wire.jobs import JobsFilter, Limit, Request
from ingot.wire.values import Attempts, Moment, Priority


class JobsAction(Request, frozen=True, kw_only=True, tag_field="action"):
    """What to do with the jobs that fit a filter; an empty one needs `all`."""

    filter: JobsFilter = JobsFilter()
    all: bool = False
    dry_run: bool = False
    limit: Limit = STEP_JOBS_DEFAULT
    cursor: str | None = None


class CancelJobs(JobsAction, frozen=True, kw_only=True, tag="cancel"):
    """Cancel those that wait, ask those that run to stop."""


class RetryJobs(JobsAction, frozen=True, kw_only=True, tag="retry"):
    """Run finished jobs again: the dead ones, unless the filter names a status."""

    reset_attempts: bool = False
    priority: Priority | None = None
    max_attempts: Attempts | None = None
    run_at: Moment | None = None


class ChangeJobs(JobsAction, frozen=True, kw_only=True, tag="change"):
    """Give those that wait another priority."""

    priority: Priority
