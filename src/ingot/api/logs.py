"""The route of those who watch a job at work."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Final

import msgspec

from ingot.api.jobs import get_visible_job
from ingot.http.request import Request, StreamResponse
from ingot.http.routes import Granted, Route, routes_of
from ingot.jobs.errors import JobNotFound
from ingot.jobs.lifecycle import FINISHED
from ingot.jobs.model import JobLog
from ingot.jobs.service import Jobs
from ingot.kernel.errors import InvalidInput
from ingot.kernel.waits import wait_for
from ingot.wire.jobs import LogQuery

POLL_SECONDS_MIN: Final = 0.25  # What other processes append is found so soon; what this one does, at once.
POLL_SECONDS_MAX: Final = 2.0  # And while nothing comes, so soon.
KEEPALIVE_SECONDS: Final = 15.0  # Then a comment tells that the line is still good.
EVENT_STREAM: Final = "text/event-stream"
KEEPALIVE_COMMENT: Final = b": nothing new\n\n"
_EVENT_ID = re.compile(r"([0-9]{1,9})-([0-9]{1,15})")
_encode = msgspec.json.Encoder().encode


class LogsApi:
    """Logs over HTTP."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def routes(self) -> list[Route]:
        """The routes of this room."""
        needs = Granted("jobs.read")
        return [routes_of("jobs")("GET", "/jobs/{id}/log", self.log, needs, headers=("Last-Event-ID",))]

    async def log(self, call: Request, id: str, query: LogQuery) -> JobLog | StreamResponse:
        """What an attempt of a job wrote; as a stream of events, what it and those after it write from then on."""
        await get_visible_job(self._jobs, call, id)
        attempt, after = query.attempt, query.after
        if EVENT_STREAM not in (call.headers.get("accept") or "").lower():
            return await self._jobs.log(call.tenant, id, attempt=attempt, after=after)
        if (last := call.headers.get("last-event-id")) is not None:
            attempt, after = _parse_event_id(last)
        log = await self._jobs.log(call.tenant, id, attempt=attempt, after=after)
        return StreamResponse(self._follow(call.tenant, id, log.attempt, after))

    async def _follow(self, tenant: str, job_id: str, attempt: int, after: int) -> AsyncGenerator[bytes, None]:
        """Send the log of one attempt after the other, until the job is finished and all has been sent."""
        loop = asyncio.get_running_loop()
        told_at = loop.time()
        pause = POLL_SECONDS_MIN
        with self._jobs.log_followers.follow(job_id) as news, suppress(JobNotFound):
            while True:
                news.clear()
                log = await self._jobs.log(tenant, job_id, attempt=attempt, after=after)
                if log.text:
                    yield _encode_event(log)
                    told_at, after, pause = loop.time(), log.to, POLL_SECONDS_MIN
                elif not log.live and attempt < log.attempts:
                    attempt, after = attempt + 1, 0
                elif log.status in FINISHED:
                    return
                else:
                    if loop.time() - told_at >= KEEPALIVE_SECONDS:
                        yield KEEPALIVE_COMMENT
                        told_at = loop.time()
                    await wait_for(news, pause)
                    pause = min(2 * pause, POLL_SECONDS_MAX)


def _encode_event(log: JobLog) -> bytes:
    return b"id: %d-%d\nevent: log\ndata: %s\n\n" % (log.attempt, log.to, _encode(log))


def _parse_event_id(event_id: str) -> tuple[int, int]:
    """The attempt and the place that an event of ours ended at."""
    found = _EVENT_ID.fullmatch(event_id)
    if found is None:
        raise InvalidInput(
            f"{event_id[:64]!r} is not the id of an event of a log", hint="Leave out the header Last-Event-ID."
        )
    return int(found[1]), int(found[2])
