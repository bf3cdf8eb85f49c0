"""The route of bulk actions on jobs."""

from __future__ import annotations

from typing import cast

import msgspec

from ingot.http.request import Request
from ingot.http.routes import Granted, Route, route_factory
from ingot.jobs.bulk_actions import Actions, BulkActionOptions, BulkActionResult
from ingot.jobs.queries import JobFilters
from ingot.jobs.service import Jobs
from ingot.wire.bulk_actions import BulkActionRequest, CancelJobsRequest, ChangeJobsRequest, RetryJobsRequest


class BulkActionsApi:
    """Route of bulk actions on jobs."""

    def __init__(self, jobs: Jobs) -> None:
        self._actions = Actions(jobs)

    def routes(self) -> list[Route]:
        """Return the routes of this module."""
        return [route_factory("jobs")("POST", "/jobs/actions", self.act, Granted("jobs.manage"))]

    async def act(
        self, request: Request, body: CancelJobsRequest | RetryJobsRequest | ChangeJobsRequest
    ) -> BulkActionResult:
        """Cancel, retry or change all jobs that fit a filter. Repeat with `next_cursor` until it is `null`."""
        request.require("jobs.manage", "*" if body.filter.type is None else f"jobs/{body.filter.type}")
        step = _step_options(body)
        match body:
            case CancelJobsRequest():
                return await self._actions.cancel(request.tenant, by=request.caller.principal, **step)
            case RetryJobsRequest():
                return await self._actions.retry(
                    request.tenant,
                    reset_attempts=body.reset_attempts,
                    priority=body.priority,
                    max_attempts=body.max_attempts,
                    run_at=body.run_at,
                    **step,
                )
            case ChangeJobsRequest():
                return await self._actions.change(request.tenant, priority=body.priority, **step)


def _step_options(body: BulkActionRequest) -> BulkActionOptions:
    filters = cast("JobFilters", msgspec.structs.asdict(body.filter))
    return BulkActionOptions(**filters, all_jobs=body.all, dry_run=body.dry_run, limit=body.limit, cursor=body.cursor)
