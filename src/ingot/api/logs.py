"""The route of job logs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Final

import msgspec

from ingot.api.jobs import get_visible_job
from ingot.http.request import Request, StreamResponse
from ingot.http.routes import Granted, Route, route_factory
from ingot.jobs.errors import JobNotFound
from ingot.jobs.lifecycle import FINISHED
from ingot.jobs.model import JobLog
from ingot.jobs.service import Jobs
from ingot.kernel.errors import InvalidInput
from ingot.kernel.waits import wait_for
from ingot.wire.jobs import LogQuery

# Text that another process appended is found by polling. The pause grows while there is none.
POLL_SECONDS_MIN: Final = 0.25
POLL_SECONDS_MAX: Final = 2.0
KEEPALIVE_SECONDS: Final = 15.0
EVENT_STREAM: Final = "text/event-stream"
KEEPALIVE_COMMENT: Final = b": nothing new\n\n"
_EVENT_ID = re.compile(r"([0-9]{1,9})-([0-9]{1,15})")
_encode = msgspec.json.Encoder().encode


class LogsApi:
    """Route of job logs."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def routes(self) -> list[Route]:
        """Return the routes of this module."""
        needs = Granted("jobs.read")
        return [route_factory("jobs")("GET", "/jobs/{id}/log", self.log, needs, headers=("Last-Event-ID",))]

    async def log(self, request: Request, id: str, query: LogQuery) -> JobLog | StreamResponse:
        """Read the log of an attempt, or stream it and the logs of later attempts until the job has finished."""
        await get_visible_job(self._jobs, request, id)
        attempt, after = query.attempt, query.after
        if EVENT_STREAM not in (request.headers.get("accept") or "").lower():
            return await self._jobs.log(request.tenant, id, attempt=attempt, after=after)
        if (last := request.headers.get("last-event-id")) is not None:
            attempt, after = _parse_event_id(last)
        log = await self._jobs.log(request.tenant, id, attempt=attempt, after=after)
        return StreamResponse(self._follow(request.tenant, id, log.attempt, after))

    async def _follow(self, tenant: str, job_id: str, attempt: int, after: int) -> AsyncGenerator[bytes, None]:
        """Send the logs of all attempts in order, until the job has finished and everything is sent."""
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        pause = POLL_SECONDS_MIN
        with self._jobs.log_followers.follow(job_id) as log_changed, suppress(JobNotFound):
            while True:
                log_changed.clear()
                log = await self._jobs.log(tenant, job_id, attempt=attempt, after=after)
                if log.text:
                    yield _encode_event(log)
                    sent_at, after, pause = loop.time(), log.to, POLL_SECONDS_MIN
                elif not log.live and attempt < log.attempts:
                    attempt, after = attempt + 1, 0
                elif log.status in FINISHED:
                    return
                else:
                    if loop.time() - sent_at >= KEEPALIVE_SECONDS:
                        yield KEEPALIVE_COMMENT
                        sent_at = loop.time()
                    await wait_for(log_changed, pause)
                    pause = min(2 * pause, POLL_SECONDS_MAX)


def _encode_event(log: JobLog) -> bytes:
    return b"id: %d-%d\nevent: log\ndata: %s\n\n" % (log.attempt, log.to, _encode(log))


def _parse_event_id(event_id: str) -> tuple[int, int]:
    """Return the attempt and the position after the text of an event."""
    match = _EVENT_ID.fullmatch(event_id)
    if match is None:
        raise InvalidInput(
            f"Last-Event-ID must be the ID of an event of this log, got {event_id[:64]!r}",
            hint="Leave out the header Last-Event-ID to start from the beginning.",
        )
    return int(match[1]), int(match[2])
