"""The route of those who steer many jobs at once."""

from __future__ import annotations

from ingot.http.call import Call
from ingot.http.table import PREFIX, Granted, Route
from ingot.jobs.actions import Acted, Actions, Step
from ingot.jobs.service import Jobs
from ingot.wire.actions import CancelJobs, ChangeJobs, JobsAction, RetryJobs


class ActionsApi:
    """Actions on many jobs over HTTP."""

    def __init__(self, jobs: Jobs) -> None:
        self._actions = Actions(jobs)

    def routes(self) -> list[Route]:
        """The routes of this room."""
        return [
            Route(
                method="POST",
                path=f"{PREFIX}/jobs/actions",
                handler=self.act,
                needs=Granted("jobs.manage"),
                room="jobs",
                rate="write",
            ),
        ]

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
    return Step(
        status=body.filter.status,
        type=body.filter.type,
        tag=body.filter.tag,
        source=body.filter.source,
        created_after=body.filter.created_after,
        created_before=body.filter.created_before,
        all_jobs=body.all,
        dry_run=body.dry_run,
        limit=body.limit,
        cursor=body.cursor,
    )
