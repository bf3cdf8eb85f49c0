"""Actions on all jobs that fit a filter: found page by page, each judged by itself, in bounded steps."""

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

STEP_SECONDS_MAX: Final = 5.0  # Then the caller is told how far it went.
STEP_JOBS_DEFAULT: Final = 1000
BATCH_JOBS: Final = 100  # Their commands are committed together.
FILTER_NAMES: Final = tuple(JobFilters.__annotations__)


class BulkActionOptions(JobFilters, total=False):
    """Which jobs are meant, and how far one call goes. `all_jobs` says that no filter means every job."""

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
    """What a step did: jobs that fit, those of them that were changed, and those that could not be.

    What moved on by itself meanwhile, or is as it should be, is in neither. With a `next_cursor` there is more to do.
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
    """What is done to each job: to those in which states, and in which unless told, and whether it changes one."""

    name: str
    statuses: Sequence[JobStatus]
    default_statuses: Sequence[JobStatus]
    needs_change: Callable[[Job], bool]
    apply: Callable[[str, str], Awaitable[Job]]


class Actions:
    """Steers many jobs at once. Every call is one step, to be repeated with its cursor until there is none."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def cancel(self, tenant: str, **step: Unpack[BulkActionOptions]) -> BulkActionResult:
        """Cancel what waits, and ask what runs to stop."""
        waiting = (JobStatus.BLOCKED, JobStatus.QUEUED, JobStatus.RUNNING)
        return await self._run_step(
            BulkAction(
                name="cancel",
                statuses=waiting,
                default_statuses=waiting,
                needs_change=lambda job: not job.cancel_requested,
                apply=self._jobs.cancel,
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
        """Run finished jobs again: the dead ones, or those in the status that the filter names."""
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
        """Give jobs that wait another priority."""
        waiting = (JobStatus.BLOCKED, JobStatus.QUEUED)
        given = checks.priority(priority)
        if given is None:
            raise InvalidInput("a change of many jobs has no priority")
        return await self._run_step(
            BulkAction(
                name="change",
                statuses=waiting,
                default_statuses=waiting,
                needs_change=lambda job: job.priority != given,
                apply=partial(self._jobs.reschedule, priority=given),
            ),
            tenant,
            step,
        )

    async def _run_step(self, deed: BulkAction, tenant: str, step: BulkActionOptions) -> BulkActionResult:
        """Go through the states one after the other, until enough was done or it took long enough."""
        filters: dict[str, Any] = {name: step.get(name) for name in FILTER_NAMES}
        statuses = _statuses(deed, filters, all_jobs=validation.check_boolean(step.get("all_jobs", False), name="all"))
        dry_run = validation.check_boolean(step.get("dry_run", False), name="dry_run")
        left = check_limit(step.get("limit", STEP_JOBS_DEFAULT))
        bound_to = ("actions", deed.name, tenant, *(str(value) for value in filters.values()))
        place, within = _decode_position(step.get("cursor"), bound_to, len(statuses))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STEP_SECONDS_MAX
        matched = changed = 0
        failed: list[BulkActionFailure] = []
        while place < len(statuses) and left > 0 and loop.time() < deadline:
            status, limit = statuses[place], min(left, BATCH_JOBS)
            filters["status"] = status
            page = await self._jobs.list(tenant, cursor=within, limit=limit, **filters)
            matched += len(page.items)
            left -= len(page.items)
            wanted = [job for job in page.items if deed.needs_change(job)]
            done, refused = (len(wanted), []) if dry_run else await _apply_to_all(deed, tenant, wanted)
            changed += done
            failed += refused
            within = page.next_cursor
            place += within is None
        ends = place == len(statuses)
        cursor = None if ends else encode_cursor(f"{place} {within or ''}", bound_to=bound_to)
        return BulkActionResult(matched=matched, changed=changed, failed=failed, next_cursor=cursor)


def _statuses(deed: BulkAction, filters: dict[str, Any], *, all_jobs: bool) -> Sequence[JobStatus]:
    """The states to go through. Raises `InvalidInput` when there is no filter, or one that finds nothing to change."""
    if all(value is None for value in filters.values()) and not all_jobs:
        raise InvalidInput(
            f"there is no filter: this would {deed.name} all jobs of the tenant",
            hint='Name a filter, or say "all": true; nothing was changed.',
        )
    if filters["status"] is None:
        return deed.default_statuses
    status = checks.status(filters["status"])
    if status not in deed.statuses:
        raise InvalidInput(
            f"to {deed.name} jobs that are {status} changes nothing",
            hint=f"Choose a status out of {', '.join(deed.statuses)}, or none; nothing was changed.",
        )
    return (status,)


def _decode_position(cursor: str | None, bound_to: Sequence[str], states: int) -> tuple[int, str | None]:
    """Which of the states comes next, and where in its list."""
    if cursor is None:
        return 0, None
    place, _, within = decode_cursor(validation.check_text(cursor, name="cursor"), bound_to=bound_to).partition(" ")
    if not (place.isascii() and place.isdecimal() and len(place) == 1 and int(place) < states):
        raise InvalidCursor
    return int(place), within or None


async def _apply_to_all(deed: BulkAction, tenant: str, jobs: Sequence[Job]) -> tuple[int, list[BulkActionFailure]]:
    """Do it to these jobs at the same time; how many were changed, and which could not be."""
    answers = await asyncio.gather(*(deed.apply(tenant, job.id) for job in jobs), return_exceptions=True)
    changed, failed = 0, []
    for job, answer in zip(jobs, answers, strict=True):
        match answer:
            case Job():
                changed += 1
            case JobFinished() | JobNotFinished() | JobNotQueued() | JobNotFound():
                pass  # It moved on since we looked.
            case IngotError():
                failed.append(BulkActionFailure(id=job.id, code=answer.code))
            case _:
                raise answer
    return changed, failed
