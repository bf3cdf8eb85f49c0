"""Logs over HTTP: what a worker sends with its heartbeats is read, and followed live, by whoever may."""

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


async def beat(served: Served, claimed: dict[str, Any], log: str, **more: Any) -> int:
    """A heartbeat that brings text."""
    body = {"fence": claimed["fence"], "log": log, **more}
    return (await served.call("POST", f"/jobs/{claimed['id']}/heartbeat", json=body)).status_code


async def claimed_job(served: Served) -> dict[str, Any]:
    await served.make_job()
    return await served.claim()


class Following:
    """Somebody who follows a log: the events as they come."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines

    async def next(self) -> dict[str, str]:
        """The next event, or comment, by the names of its fields."""
        event: dict[str, str] = {}
        async with asyncio.timeout(30):
            async for line in self._lines:
                if not line:
                    return event
                name, _, value = line.partition(": ")
                event[name or "comment"] = value.strip() or line
        return event

    async def text(self) -> tuple[str, str]:
        """The id of the next event and the text in it."""
        event = await self.next()
        assert event["event"] == "log", event
        return event["id"], json.loads(event["data"])["text"]

    async def rest(self) -> list[dict[str, str]]:
        """All that comes until the line is closed."""
        events = []
        while event := await self.next():
            events.append(event)
        return events


@asynccontextmanager
async def following(served: Served, job_id: str, *, last: str | None = None, **query: Any) -> AsyncIterator[Following]:
    headers = {"authorization": f"Bearer {served.operator}", "accept": "text/event-stream"}
    if last is not None:
        headers["last-event-id"] = last
    async with served.client.stream("GET", f"/api/v1/jobs/{job_id}/log", headers=headers, params=query) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"] == "text/event-stream"
        yield Following(answer.aiter_lines())


async def test_what_heartbeats_bring_is_read(served: Served) -> None:
    claimed = await claimed_job(served)
    assert await beat(served, claimed, "one\n", log_offset=0) == 200
    assert await beat(served, claimed, "two\n", log_offset=4) == 200
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
    rest = (await served.call("GET", f"/jobs/{claimed['id']}/log", params={"attempt": 1, "after": 5})).json()
    assert (rest["from"], rest["to"], rest["text"]) == (5, 8, "wo\n")


async def test_a_heartbeat_that_is_sent_again_adds_nothing(served: Served) -> None:
    claimed = await claimed_job(served)
    for _ in range(3):
        assert await beat(served, claimed, "once\n", log_offset=0) == 200
    assert (await served.call("GET", f"/jobs/{claimed['id']}/log")).json()["text"] == "once\n"


async def test_a_stale_heartbeat_adds_nothing(served: Served) -> None:
    claimed = await claimed_job(served)
    assert await beat(served, {**claimed, "fence": claimed["fence"] + 1}, "stale") == 409
    assert (await served.call("GET", f"/jobs/{claimed['id']}/log")).json()["text"] == ""


async def test_a_log_that_is_too_long_is_refused_before_the_lease_is_renewed(served: Served) -> None:
    claimed = await claimed_job(served)
    longest = "\U0001f600" * LOG_CHARS_MAX
    assert await beat(served, claimed, longest + "x") == 422
    assert await beat(served, claimed, "x", log_offset=-1) == 422
    seen = (await served.call("GET", f"/jobs/{claimed['id']}")).json()
    assert seen["lease_expires_at"] == claimed["lease_expires_at"]
    assert await beat(served, claimed, longest) == 200
    assert (await served.call("GET", f"/jobs/{claimed['id']}/log")).json()["text"] == longest


async def test_who_may_not_see_a_job_does_not_see_its_log(served: Served) -> None:
    claimed = await claimed_job(served)
    await beat(served, claimed, "secret")
    own = await served.token(Grant(action="jobs.read", resource="jobs/noop"))
    other = await served.token(Grant(action="jobs.read", resource="jobs/other"))
    path = f"/jobs/{claimed['id']}/log"
    assert (await served.call("GET", path, token=own)).json()["text"] == "secret"
    for headers in ({}, {"accept": "text/event-stream"}):
        refused = await served.call("GET", path, token=other, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (404, "job_not_found")


async def test_what_is_not_there_is_told_before_a_stream_begins(served: Served) -> None:
    job = await served.make_job()
    events = {"accept": "text/event-stream"}
    nothing = await served.call("GET", f"/jobs/{new_id()}/log", headers=events)
    assert (nothing.status_code, nothing.json()["code"]) == (404, "job_not_found")
    never = await served.call("GET", f"/jobs/{job['id']}/log", params={"attempt": 2}, headers=events)
    assert (never.status_code, never.json()["code"]) == (404, "attempt_not_found")
    for last in ("x", "1", "1-", "-1-2", "1-2-3", "9" * 40 + "-1"):
        wrong = await served.call("GET", f"/jobs/{job['id']}/log", headers={**events, "last-event-id": last})
        assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_input"), last


async def test_a_log_is_followed_live_to_the_end_of_its_job(served: Served) -> None:
    claimed = await claimed_job(served)
    await beat(served, claimed, "before\n")
    async with following(served, claimed["id"]) as follower:
        assert await follower.text() == ("1-7", "before\n")
        for number in range(3):
            await beat(served, claimed, f"{number}\r\n\n")
            assert await follower.text() == (f"1-{11 + 4 * number}", f"{number}\r\n\n")
        await beat(served, claimed, "last")
        await served.call("POST", f"/jobs/{claimed['id']}/complete", json={"fence": claimed["fence"]})
        assert await follower.text() == ("1-23", "last")
        assert await follower.rest() == [{"event": "end", "data": '{"reason": "complete"}'}]


async def test_a_follower_is_woken_by_what_is_appended_here(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "POLL_SECONDS_MIN", 60)
    claimed = await claimed_job(served)
    async with following(served, claimed["id"]) as follower:
        for number in range(10):
            await beat(served, claimed, str(number))
            assert await follower.text() == (f"1-{number + 1}", str(number))


async def test_a_follower_goes_on_with_the_attempts_that_come(served: Served) -> None:
    job = await served.make_job()
    async with following(served, job["id"]) as follower:
        for attempt in (1, 2, 3):
            claimed = await served.claim()
            await beat(served, claimed, f"attempt {attempt}")
            assert await follower.text() == (f"{attempt}-9", f"attempt {attempt}")
            await served.call("POST", f"/jobs/{job['id']}/release", json={"fence": claimed["fence"]})
        await served.call("POST", f"/jobs/{job['id']}/cancel")
        assert [event["event"] for event in await follower.rest()] == ["end"]


@pytest.mark.parametrize(
    ("last", "texts"),
    [
        (None, [("2-6", "second")]),
        ("1-0", [("1-5", "first"), ("2-6", "second")]),
        ("1-2", [("1-5", "rst"), ("2-6", "second")]),
        ("1-5", [("2-6", "second")]),
        ("2-4", [("2-6", "nd")]),
        ("2-6", []),
    ],
)
async def test_a_stream_goes_on_where_it_broke_off(served: Served, last: str, texts: list[tuple[str, str]]) -> None:
    job = await served.make_job()
    for text, end in (("first", "release"), ("second", "complete")):
        claimed = await served.claim()
        await beat(served, claimed, text)
        await served.call("POST", f"/jobs/{job['id']}/{end}", json={"fence": claimed["fence"]})
    async with following(served, job["id"], last=last) as follower:
        assert [await follower.text() for _ in texts] == texts
        assert [event["event"] for event in await follower.rest()] == ["end"]


async def test_what_was_dropped_is_told_by_where_the_text_begins(served: Served) -> None:
    claimed = await claimed_job(served)
    for offset in (0, LOG_CHARS_MAX):
        await beat(served, claimed, "x" * LOG_CHARS_MAX, log_offset=offset)
    async with following(served, claimed["id"], after=7) as follower:
        event = json.loads((await follower.next())["data"])
        assert (event["from"], event["to"]) == (LOG_CHARS_MAX, 2 * LOG_CHARS_MAX)


async def test_a_quiet_line_is_kept_alive_by_comments(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "KEEPALIVE_SECONDS", 0)
    claimed = await claimed_job(served)
    async with following(served, claimed["id"]) as follower:
        assert await follower.next() == {"comment": "nothing new"}
