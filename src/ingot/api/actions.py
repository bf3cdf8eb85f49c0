"""The route of those who steer many jobs at once."""

from __future__ import annotations

from typing import cast

import msgspec

from ingot.http.call import Call
from ingot.http.table import Granted, Route, routes_of
from ingot.jobs.actions import Acted, Actions, Step
from ingot.jobs.looking import JobFilters
from ingot.jobs.service import Jobs
from ingot.wire.actions import CancelJobs, ChangeJobs, JobsAction, RetryJobs


class ActionsApi:
    """Actions on many jobs over HTTP."""

    def __init__(self, jobs: Jobs) -> None:
        self._actions = Actions(jobs)

    def routes(self) -> list[Route]:
        """The routes of this room."""
        return [routes_of("jobs")("POST", "/jobs/actions", self.act, Granted("jobs.manage"))]

    async def act(self, call: Call, body: CancelJobs | RetryJobs | ChangeJobs) -> Acted:
        """Cancel, retry or change jobs that fit a filter. Go on with `next_cursor` until there is none."""
        call.expect("jobs.manage", "*" if body.filter.type is None else f"jobs/{body.filter.type}")
        step = _step(body)
        match body:
            case CancelJobs():
                return await self._actions.cancel(call.tenant, **step)
            case RetryJobs():
                return await self._actions.retry(
                    call.tenant,
                    reset_attempts=body.reset_attempts,
                    priority=body.priority,
                    max_attempts=body.max_attempts,
                    run_at=body.run_at,
                    **step,
                )
            case ChangeJobs():
                return await self._actions.change(call.tenant, priority=body.priority, **step)


def _step(body: JobsAction) -> Step:
    filters = cast("JobFilters", msgspec.structs.asdict(body.filter))
    return Step(**filters, all_jobs=body.all, dry_run=body.dry_run, limit=body.limit, cursor=body.cursor)
