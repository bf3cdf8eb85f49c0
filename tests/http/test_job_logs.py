"""Job logs over HTTP: text that heartbeats append can be read and followed live."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ingot.api import logs
from ingot.identity.grants import Grant
from ingot.jobs.checks import LOG_CHARS_MAX
from ingot.kernel.ids import new_id
from tests.http.serving import Served


async def append_log(served: Served, claimed: dict[str, Any], log: str, **more: Any) -> int:
    """Send a heartbeat with log text, and return the status of the response."""
    body = {"fence": claimed["fence"], "log": log, **more}
    return (await served.call("POST", f"/jobs/{claimed['id']}/heartbeat", json=body)).status_code


async def claimed_job(served: Served) -> dict[str, Any]:
    await served.make_job()
    return await served.claim()


class LogFollower:
    """A client that follows a log."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines

    async def next(self) -> dict[str, str]:
        """The fields of the next event or comment."""
        event: dict[str, str] = {}
        async with asyncio.timeout(30):
            async for line in self._lines:
                if not line:
                    return event
                name, _, value = line.partition(": ")
                event[name or "comment"] = value.strip() or line
        return event

    async def text(self) -> tuple[str, str]:
        """The ID and the text of the next event."""
        event = await self.next()
        assert event["event"] == "log", event
        return event["id"], json.loads(event["data"])["text"]

    async def remaining(self) -> list[dict[str, str]]:
        """All events until the stream ends."""
        events = []
        while event := await self.next():
            events.append(event)
        return events


@asynccontextmanager
async def follow_log(
    served: Served, job_id: str, *, last_id: str | None = None, **query: Any
) -> AsyncIterator[LogFollower]:
    headers = {"authorization": f"Bearer {served.operator}", "accept": "text/event-stream"}
    if last_id is not None:
        headers["last-event-id"] = last_id
    async with served.client.stream("GET", f"/api/v1/jobs/{job_id}/log", headers=headers, params=query) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"] == "text/event-stream"
        yield LogFollower(response.aiter_lines())


async def test_text_of_heartbeats_is_read_as_the_log(served: Served) -> None:
    claimed = await claimed_job(served)
    assert await append_log(served, claimed, "one\n", log_offset=0) == 200
    assert await append_log(served, claimed, "two\n", log_offset=4) == 200
    log = (await served.call("GET", f"/jobs/{claimed['id']}/log")).json()
    assert log == {
        "job_id": claimed["id"],
        "attempt": 1,
        "fence": claimed["fence"],
        "from": 0,
        "to": 8,
        "text": "one\ntwo\n",
        "live": True,
        "attempts": 1,
        "status": "running",
    }
    end_of_log = (await served.call("GET", f"/jobs/{claimed['id']}/log", params={"attempt": 1, "after": 5})).json()
    assert (end_of_log["from"], end_of_log["to"], end_of_log["text"]) == (5, 8, "wo\n")


async def test_a_repeated_heartbeat_appends_nothing(served: Served) -> None:
    claimed = await claimed_job(served)
    for _ in range(3):
        assert await append_log(served, claimed, "once\n", log_offset=0) == 200
    assert (await served.call("GET", f"/jobs/{claimed['id']}/log")).json()["text"] == "once\n"


async def test_a_heartbeat_with_a_stale_fence_appends_nothing(served: Served) -> None:
    claimed = await claimed_job(served)
    assert await append_log(served, {**claimed, "fence": claimed["fence"] + 1}, "stale") == 409
    assert (await served.call("GET", f"/jobs/{claimed['id']}/log")).json()["text"] == ""


async def test_a_heartbeat_with_too_much_text_is_rejected_without_renewing_the_lease(served: Served) -> None:
    claimed = await claimed_job(served)
    longest = "\U0001f600" * LOG_CHARS_MAX
    assert await append_log(served, claimed, longest + "x") == 422
    assert await append_log(served, claimed, "x", log_offset=-1) == 422
    job = (await served.call("GET", f"/jobs/{claimed['id']}")).json()
    assert job["lease_expires_at"] == claimed["lease_expires_at"]
    assert await append_log(served, claimed, longest) == 200
    assert (await served.call("GET", f"/jobs/{claimed['id']}/log")).json()["text"] == longest


async def test_a_log_is_hidden_from_callers_that_may_not_read_the_job(served: Served) -> None:
    claimed = await claimed_job(served)
    await append_log(served, claimed, "secret")
    own = await served.token(Grant(action="jobs.read", resource="jobs/noop"))
    other = await served.token(Grant(action="jobs.read", resource="jobs/other"))
    path = f"/jobs/{claimed['id']}/log"
    assert (await served.call("GET", path, token=own)).json()["text"] == "secret"
    for headers in ({}, {"accept": "text/event-stream"}):
        response = await served.call("GET", path, token=other, headers=headers)
        assert (response.status_code, response.json()["code"]) == (404, "job_not_found")


async def test_a_stream_of_an_unknown_job_or_attempt_is_rejected_before_it_starts(served: Served) -> None:
    job = await served.make_job()
    events = {"accept": "text/event-stream"}
    unknown_job = await served.call("GET", f"/jobs/{new_id()}/log", headers=events)
    assert (unknown_job.status_code, unknown_job.json()["code"]) == (404, "job_not_found")
    unknown_attempt = await served.call("GET", f"/jobs/{job['id']}/log", params={"attempt": 2}, headers=events)
    assert (unknown_attempt.status_code, unknown_attempt.json()["code"]) == (404, "attempt_not_found")
    for last_id in ("x", "1", "1-", "-1-2", "1-2-3", "9" * 40 + "-1"):
        invalid_id = await served.call("GET", f"/jobs/{job['id']}/log", headers={**events, "last-event-id": last_id})
        assert (invalid_id.status_code, invalid_id.json()["code"]) == (422, "invalid_input"), last_id


async def test_a_log_is_followed_live_until_its_job_ends(served: Served) -> None:
    claimed = await claimed_job(served)
    await append_log(served, claimed, "before\n")
    async with follow_log(served, claimed["id"]) as follower:
        assert await follower.text() == ("1-7", "before\n")
        for number in range(3):
            await append_log(served, claimed, f"{number}\r\n\n")
            assert await follower.text() == (f"1-{11 + 4 * number}", f"{number}\r\n\n")
        await append_log(served, claimed, "last")
        await served.call("POST", f"/jobs/{claimed['id']}/complete", json={"fence": claimed["fence"]})
        assert await follower.text() == ("1-23", "last")
        assert await follower.remaining() == [{"event": "end", "data": '{"reason": "complete"}'}]


async def test_a_follower_is_woken_by_text_that_the_same_server_appends(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "POLL_SECONDS_MIN", 60)
    claimed = await claimed_job(served)
    async with follow_log(served, claimed["id"]) as follower:
        for number in range(10):
            await append_log(served, claimed, str(number))
            assert await follower.text() == (f"1-{number + 1}", str(number))


async def test_a_follower_continues_with_later_attempts(served: Served) -> None:
    job = await served.make_job()
    async with follow_log(served, job["id"]) as follower:
        for attempt in (1, 2, 3):
            claimed = await served.claim()
            await append_log(served, claimed, f"attempt {attempt}")
            assert await follower.text() == (f"{attempt}-9", f"attempt {attempt}")
            await served.call("POST", f"/jobs/{job['id']}/release", json={"fence": claimed["fence"]})
        await served.call("POST", f"/jobs/{job['id']}/cancel")
        assert [event["event"] for event in await follower.remaining()] == ["end"]


@pytest.mark.parametrize(
    ("last_id", "texts"),
    [
        (None, [("2-6", "second")]),
        ("1-0", [("1-5", "first"), ("2-6", "second")]),
        ("1-2", [("1-5", "rst"), ("2-6", "second")]),
        ("1-5", [("2-6", "second")]),
        ("2-4", [("2-6", "nd")]),
        ("2-6", []),
    ],
)
async def test_a_stream_resumes_after_the_last_event_id(
    served: Served, last_id: str, texts: list[tuple[str, str]]
) -> None:
    job = await served.make_job()
    for text, end in (("first", "release"), ("second", "complete")):
        claimed = await served.claim()
        await append_log(served, claimed, text)
        await served.call("POST", f"/jobs/{job['id']}/{end}", json={"fence": claimed["fence"]})
    async with follow_log(served, job["id"], last_id=last_id) as follower:
        assert [await follower.text() for _ in texts] == texts
        assert [event["event"] for event in await follower.remaining()] == ["end"]


async def test_dropped_text_is_visible_from_the_offset_of_the_next_event(served: Served) -> None:
    claimed = await claimed_job(served)
    for offset in (0, LOG_CHARS_MAX):
        await append_log(served, claimed, "x" * LOG_CHARS_MAX, log_offset=offset)
    async with follow_log(served, claimed["id"], after=7) as follower:
        event = json.loads((await follower.next())["data"])
        assert (event["from"], event["to"]) == (LOG_CHARS_MAX, 2 * LOG_CHARS_MAX)


async def test_an_idle_log_stream_sends_comments(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "KEEPALIVE_SECONDS", 0)
    claimed = await claimed_job(served)
    async with follow_log(served, claimed["id"]) as follower:
        assert await follower.next() == {"comment": "nothing new"}
