"""Actions on all jobs that match a filter. Each call is one bounded step, which reads pages and changes each job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, Unpack

import msgspec

from ingot.jobs import checks
from ingot.jobs.errors import JobFinished, JobNotFinished, JobNotFound, JobNotQueued
from ingot.jobs.model import Job, JobStatus
from ingot.jobs.queries import JobFilters
from ingot.jobs.service import Jobs
from ingot.kernel import validation
from ingot.kernel.errors import IngotError, InvalidInput
from ingot.kernel.pages import InvalidCursor, check_limit, decode_cursor, encode_cursor
from ingot.kernel.slices import next_slice

STEP_SECONDS_MAX: Final = 5.0  # After this time, a step returns its result and a cursor.
STEP_JOBS_DEFAULT: Final = 1000
BATCH_JOBS: Final = 25  # Jobs that are changed concurrently, so that their commands share commits.
FILTER_NAMES: Final = tuple(JobFilters.__annotations__)


class BulkActionOptions(JobFilters, total=False):
    """The filters of a bulk action, and the limits of one step. `all_jobs` is required if no filter is given."""

    all_jobs: bool
    dry_run: bool
    limit: int
    cursor: str | None


class BulkActionFailure(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job that could not be changed, and the code of the error."""

    id: str
    """ID of the job."""
    code: str
    """Error code."""


class BulkActionResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of a step: how many jobs matched, how many were changed, and which could not be changed.

    Jobs that changed their status in the meantime, or need no change, are neither in `changed` nor in `failed`. If
    there is a `next_cursor`, the action has to continue from there.
    """

    matched: int
    """Number of jobs that matched the filter."""
    changed: int
    """Number of jobs that were changed; with `dry_run`, number of jobs that would be changed."""
    failed: list[BulkActionFailure]
    """Jobs that could not be changed."""
    next_cursor: str | None = None
    """Send it as `cursor` to continue; `null` if all jobs are done."""


class BulkAction(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An action on single jobs. Without a status filter, jobs in one of the `default_statuses` are selected.

    `statuses` are those in which the action can change a job. `apply` takes a tenant ID and a job ID.
    """

    name: str
    statuses: Sequence[JobStatus]
    default_statuses: Sequence[JobStatus]
    needs_change: Callable[[Job], bool]
    apply: Callable[[str, str], Awaitable[Job]]


class Actions:
    """Cancels, retries or changes many jobs. Each call is one step; repeat it with `next_cursor` until that is `None`.

    Raises `InvalidInput` or `InvalidCursor`.
    """

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def cancel(
        self, tenant: str, *, by: str | None = None, **step: Unpack[BulkActionOptions]
    ) -> BulkActionResult:
        """Cancel waiting jobs, and request running jobs to stop. `by` is that of `Jobs.cancel`."""
        unfinished = (JobStatus.BLOCKED, JobStatus.QUEUED, JobStatus.RUNNING)
        return await self._run_step(
            BulkAction(
                name="cancel",
                statuses=unfinished,
                default_statuses=unfinished,
                needs_change=lambda job: not job.cancel_requested,
                apply=partial(self._jobs.cancel, by=by),
            ),
            tenant,
            step,
        )

    async def retry(
        self,
        tenant: str,
        *,
        reset_attempts: bool = False,
        priority: int | None = None,
        max_attempts: int | None = None,
        run_at: datetime | None = None,
        **step: Unpack[BulkActionOptions],
    ) -> BulkActionResult:
        """Run finished jobs again: dead jobs, or jobs in the status that the filter names."""
        retry = partial(
            self._jobs.retry,
            reset_attempts=validation.check_boolean(reset_attempts, name="reset_attempts"),
            priority=checks.priority(priority),
            max_attempts=checks.max_attempts(max_attempts),
            run_at=run_at,
        )
        checks.timestamp(run_at)
        return await self._run_step(
            BulkAction(
                name="retry",
                statuses=(JobStatus.DEAD, JobStatus.CANCELED, JobStatus.SUCCEEDED),
                default_statuses=(JobStatus.DEAD,),
                needs_change=lambda _: True,
                apply=retry,
            ),
            tenant,
            step,
        )

    async def change(self, tenant: str, *, priority: int, **step: Unpack[BulkActionOptions]) -> BulkActionResult:
        """Change the priority of waiting jobs."""
        waiting = (JobStatus.BLOCKED, JobStatus.QUEUED)
        new_priority = checks.priority(priority)
        if new_priority is None:
            raise InvalidInput("change requires a priority, got none", hint="Set priority. Nothing was changed.")
        return await self._run_step(
            BulkAction(
                name="change",
                statuses=waiting,
                default_statuses=waiting,
                needs_change=lambda job: job.priority != new_priority,
                apply=partial(self._jobs.reschedule, priority=new_priority),
            ),
            tenant,
            step,
        )

    async def _run_step(self, action: BulkAction, tenant: str, step: BulkActionOptions) -> BulkActionResult:
        """Process one status after another until the step has reached its limit or has taken long enough."""
        filters: dict[str, Any] = {name: step.get(name) for name in FILTER_NAMES}
        all_jobs = validation.check_boolean(step.get("all_jobs", False), name="all")
        statuses = _statuses(action, filters, all_jobs=all_jobs)
        dry_run = validation.check_boolean(step.get("dry_run", False), name="dry_run")
        jobs_left = check_limit(step.get("limit", STEP_JOBS_DEFAULT))
        bound_to = ("actions", action.name, tenant, *(str(value) for value in filters.values()))
        status_index, list_cursor = _decode_position(step.get("cursor"), bound_to, len(statuses))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STEP_SECONDS_MAX
        matched = changed = 0
        failed: list[BulkActionFailure] = []
        while status_index < len(statuses) and jobs_left > 0 and loop.time() < deadline:
            filters["status"] = statuses[status_index]
            await next_slice()
            page = await self._jobs.list(tenant, cursor=list_cursor, limit=min(jobs_left, BATCH_JOBS), **filters)
            matched += len(page.items)
            jobs_left -= len(page.items)
            jobs = [job for job in page.items if action.needs_change(job)]
            page_changed, page_failed = (len(jobs), []) if dry_run else await _apply_to_all(action, tenant, jobs)
            changed += page_changed
            failed += page_failed
            list_cursor = page.next_cursor
            status_index += list_cursor is None
        is_complete = status_index == len(statuses)
        cursor = None if is_complete else encode_cursor(f"{status_index} {list_cursor or ''}", bound_to=bound_to)
        return BulkActionResult(matched=matched, changed=changed, failed=failed, next_cursor=cursor)


def _statuses(action: BulkAction, filters: dict[str, Any], *, all_jobs: bool) -> Sequence[JobStatus]:
    """Return the statuses to process. Raises `InvalidInput` without a filter, or if no job can match and change."""
    if all(value is None for value in filters.values()) and not all_jobs:
        raise InvalidInput(
            f"no filter is set, so this would {action.name} all jobs of the tenant",
            hint='Set a filter, or "all": true to select all jobs. Nothing was changed.',
        )
    if filters["status"] is None:
        return action.default_statuses
    status = checks.status(filters["status"])
    if status not in action.statuses:
        raise InvalidInput(
            f"{action.name} has no effect on jobs with the status {status}",
            hint=f"Omit the status, or use one of {', '.join(action.statuses)}. Nothing was changed.",
        )
    return (status,)


def _decode_position(cursor: str | None, bound_to: Sequence[str], statuses: int) -> tuple[int, str | None]:
    """Return the index of the status to continue with, and the cursor in the list of its jobs."""
    if cursor is None:
        return 0, None
    cursor = validation.check_text(cursor, name="cursor")
    index, _, list_cursor = decode_cursor(cursor, bound_to=bound_to).partition(" ")
    if not (index.isascii() and index.isdecimal() and len(index) == 1 and int(index) < statuses):
        raise InvalidCursor
    return int(index), list_cursor or None


async def _apply_to_all(action: BulkAction, tenant: str, jobs: Sequence[Job]) -> tuple[int, list[BulkActionFailure]]:
    """Apply an action to these jobs concurrently. Returns the number of changed jobs and the failures."""
    results = await asyncio.gather(*(action.apply(tenant, job.id) for job in jobs), return_exceptions=True)
    changed, failed = 0, []
    for job, result in zip(jobs, results, strict=True):
        match result:
            case Job():
                changed += 1
            case JobFinished() | JobNotFinished() | JobNotQueued() | JobNotFound():
                pass  # The job has changed its status since the page was read.
            case IngotError():
                failed.append(BulkActionFailure(id=job.id, code=result.code))
            case _:
                raise result
    return changed, failed
