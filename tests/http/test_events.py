"""Event streams over HTTP: every event, in order, once, and only to callers that may read it."""

from __future__ import annotations

import asyncio
import random
import socket
from pathlib import Path
from typing import Any

import pytest

from ingot.engines.postgres import PostgresStore
from ingot.events import Events, feeds
from ingot.events.ids import EventIds
from ingot.http import streams
from ingot.http.routes import PREFIX
from ingot.identity.grants import Grant
from ingot.jobs import Jobs
from ingot.jobs.job_options import new_job
from ingot.kernel.clock import SystemClock
from ingot.settings import Settings
from tests.http.event_follower import follow_events
from tests.http.one_server import on_one_server
from tests.http.serving import Served, serving
from tests.postgres import database_for


async def make_jobs(served: Served, number: int, tenant: str | None = None) -> None:
    tenant = tenant or served.ingot.default_tenant.id
    await served.ingot.jobs.enqueue_many([new_job(tenant, "noop", n) for n in range(number)])


async def event_log(served: Served) -> list[dict[str, Any]]:
    """The whole event log of the default tenant."""
    items: list[dict[str, Any]] = []
    while True:
        query = {"limit": 1000} | ({"after": items[-1]["id"]} if items else {})
        page = (await served.call("GET", "/events", params=query)).json()
        if not page["items"]:
            return items
        items += page["items"]


async def test_a_stream_starts_with_new_events_and_sends_them_as_the_list_shows_them(served: Served) -> None:
    await make_jobs(served, 3)
    async with follow_events(served) as follower:
        await served.make_job()
        await served.claim()
        await follower.until(lambda follower: len(follower.events) == 2)
    streamed = [{"id": frame.id, "name": frame.event, **frame.data} for frame in follower.events]
    assert streamed == (await event_log(served))[3:]
    assert [frame.event for frame in follower.events] == ["job.created", "job.started"]


async def test_pages_of_large_events_have_a_limited_size_and_leave_none_out(served: Served) -> None:
    tenant = served.ingot.default_tenant.id
    for number in range(100):
        await served.ingot.events.publish(tenant, "order.paid", [number, "x" * 60_000])
    narrow = await served.token(Grant(action="events.read", resource="events/order"))
    for token in (served.operator, narrow):
        numbers, cursor = [], "0" * 16
        while True:
            response = await served.call("GET", "/events", token=token, params={"limit": 1000, "after": cursor})
            assert len(response.content) < 5 * 1024 * 1024
            page = response.json()
            if not page["items"]:
                break
            numbers += [event["data"][0] for event in page["items"]]
            cursor = page["next_cursor"]
        assert numbers == list(range(100))


async def test_resuming_under_load_has_no_gap_and_no_duplicate(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    # Few events are kept in memory, so that followers that reconnect read the log and catch up while it grows.
    monkeypatch.setattr(feeds, "RECENT_EVENTS_MAX", 40)
    monkeypatch.setattr(feeds, "READ_EVENTS_MAX", 15)
    rng = random.Random(5)
    loaded = asyncio.Event()
    await make_jobs(served, 1)
    first = (await event_log(served))[0]["id"]

    async def load() -> None:
        for _ in range(120):
            await make_jobs(served, rng.randint(1, 25))
        loaded.set()

    async def follow_once() -> list[str]:
        async with follow_events(served, last_id=first) as follower:
            await loaded.wait()
            newest = (await event_log(served))[-1]["id"]
            await follower.until(lambda follower: follower.ids and follower.ids[-1] == newest)
            return follower.ids

    async def follow_with_reconnects() -> list[str]:
        ids: list[str] = []
        while not loaded.is_set():
            enough = rng.randint(1, 60)
            async with follow_events(served, last_id=ids[-1] if ids else first) as follower:
                await follower.until(lambda follower: len(follower.ids) >= enough or loaded.is_set())  # noqa: B023
                ids += follower.ids
        newest = (await event_log(served))[-1]["id"]
        if ids[-1] != newest:
            async with follow_events(served, last_id=ids[-1]) as follower:
                await follower.until(lambda follower: follower.ids and follower.ids[-1] == newest)
                ids += follower.ids
        return ids

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        readers = [group.create_task(follow_once()) for _ in range(3)] + [
            group.create_task(follow_with_reconnects()) for _ in range(4)
        ]
        group.create_task(load())
    expected = [event["id"] for event in await event_log(served)][1:]
    for reader in readers:
        assert reader.result() == expected


async def test_a_follower_behind_the_cached_events_reads_the_log(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "RECENT_EVENTS_MAX", 5)
    await make_jobs(served, 1)
    first = (await event_log(served))[0]["id"]
    async with follow_events(served) as follower:
        await make_jobs(served, 300)
        await follower.until(lambda follower: len(follower.events) == 300)
        async with follow_events(served, last_id=first) as late:
            await late.until(lambda late: len(late.events) == 300)
            await served.make_job()
            await late.until(lambda late: len(late.events) == 301)
    assert late.ids == [event["id"] for event in await event_log(served)][1:]


async def test_a_stream_sends_only_events_that_the_grants_allow(served: Served) -> None:
    token = await served.token(Grant(action="events.read", resource="events/job.started"))
    async with follow_events(served, token=token) as follower, follow_events(served) as everything:
        await served.make_job()
        await served.claim()
        await served.make_job()
        await served.claim()
        await everything.until(lambda follower: len(follower.events) == 4)
        await follower.until(lambda follower: len(follower.events) == 2)
    assert {frame.event for frame in follower.frames} == {"job.started"}


@pytest.mark.parametrize(
    ("name", "expected_names"),
    [
        ("job", ["job.created", "job.started"]),
        ("job.started", ["job.started"]),
        ("jo,job.created", ["job.created"]),
        ("job.started,job.created", ["job.created", "job.started"]),
        ("batch,job.s", []),
    ],
)
async def test_the_name_filter_matches_whole_segments(served: Served, name: str, expected_names: list[str]) -> None:
    async with follow_events(served, name=name) as follower, follow_events(served) as everything:
        await served.make_job()
        await served.claim()
        await everything.until(lambda follower: len(follower.events) == 2)
        await follower.until(lambda follower: len(follower.events) == len(expected_names))
    assert [frame.event for frame in follower.frames] == expected_names


async def test_a_stream_never_sends_events_of_another_tenant(served: Served) -> None:
    other = await served.ingot.tenants.create("other")
    token = await served.token(tenant=other.id)
    async with follow_events(served) as mine, follow_events(served, token=token) as theirs:
        for tenant in (None, other.id, None, other.id):
            await make_jobs(served, 2, tenant)
        for follower in (mine, theirs):
            await follower.until(lambda follower: len(follower.events) == 4)
    assert {frame.data["tenant"] for frame in mine.frames} == {served.ingot.default_tenant.id}
    assert {frame.data["tenant"] for frame in theirs.frames} == {other.id}
    assert not set(mine.ids) & set(theirs.ids)


@on_one_server("after", ["", "x", "0", "g" * 16, "f" * 16, "0x00000000000001", "A" * 16, "é"])
async def test_an_invalid_event_id_is_rejected_before_the_stream_starts(served: Served, after: str) -> None:
    await make_jobs(served, 1)
    response = await served.call("GET", "/events/stream", params={"after": after})
    assert (response.status_code, response.json()["code"]) == (422, "invalid_cursor")
    if after and after.isascii():
        response = await served.call("GET", "/events/stream", headers={"last-event-id": after})
        assert (response.status_code, response.json()["code"]) == (422, "invalid_cursor")


async def test_the_last_event_id_header_overrides_the_query(served: Served) -> None:
    await make_jobs(served, 3)
    ids = [event["id"] for event in await event_log(served)]
    async with follow_events(served, last_id=ids[1], after=ids[0]) as follower:
        await follower.until(lambda follower: follower.events)
    assert follower.ids == ids[2:]


async def test_statistics_are_sent_after_changes_without_an_id(served: Served) -> None:
    async with follow_events(served, name="stats") as follower:
        await make_jobs(served, 7)
        await follower.until(
            lambda follower: follower.frames and follower.frames[-1].data["data"]["counts"]["queued"] == 7
        )
    assert {(frame.event, frame.id) for frame in follower.frames} == {("stats.updated", None)}
    assert follower.frames[-1].data["data"] == (await served.call("GET", "/jobs/summary")).json() | {
        "oldest_queued_seconds": follower.frames[-1].data["data"]["oldest_queued_seconds"]
    }


async def test_statistics_are_sent_at_most_once_per_interval(served: Served) -> None:
    loop = asyncio.get_running_loop()
    async with follow_events(served, name="stats") as follower:
        start = loop.time()
        for _ in range(30):
            await make_jobs(served, 1)
        await follower.until(
            lambda follower: follower.frames and follower.frames[-1].data["data"]["counts"]["queued"] == 30
        )
        assert len(follower.frames) <= 2 + (loop.time() - start) / feeds.STATS_SECONDS


async def test_an_idle_stream_sends_comments(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "HEARTBEAT_SECONDS", 0.3)
    monkeypatch.setattr(feeds, "TICK_SECONDS", 0.1)
    async with follow_events(served, name="nothing.of.this") as follower:
        await follower.until(lambda follower: len(follower.comments) == 1)
        await make_jobs(served, 1)  # Events that the filter hides do not replace comments.
        await follower.until(lambda follower: len(follower.comments) == 3)
    assert follower.frames == []


async def test_a_feed_exists_only_while_it_has_followers(served: Served) -> None:
    assert len(served.ingot.feeds) == 0
    async with follow_events(served), follow_events(served):
        assert len(served.ingot.feeds) == 1
        (reading,) = [task for task in asyncio.all_tasks() if task.get_name().startswith("events.feed")]
    async with asyncio.timeout(30):
        await asyncio.wait([reading])
    assert len(served.ingot.feeds) == 0


async def test_a_stream_ends_within_five_seconds_after_its_token_was_revoked(served: Served) -> None:
    published = await served.ingot.credentials.create_token(
        served.ingot.default_tenant.id, description="x", grants=[Grant(action="events.read")]
    )
    async with follow_events(served, token=published.text) as follower:
        await served.ingot.credentials.revoke_token(None, published.token.id)
        async with asyncio.timeout(30):
            await follower.until(lambda follower: follower.frames)
    assert [(frame.event, frame.data) for frame in follower.frames] == [("end", {"reason": "unauthorized"})]
    assert streams.CHECK_SECONDS < 5


async def open_and_read_nothing(served: Served, last_id: str) -> socket.socket:
    """Request a stream, and read nothing of it except the first bytes."""
    host, port = served.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, (host, int(port)))
    head = f"GET {PREFIX}/events/stream HTTP/1.1\r\nhost: x\r\nlast-event-id: {last_id}\r\n"
    await loop.sock_sendall(connection, f"{head}authorization: Bearer {served.operator}\r\n\r\n".encode())
    assert (await loop.sock_recv(connection, 12)) == b"HTTP/1.1 200"
    return connection


async def test_a_follower_that_reads_nothing_delays_no_other_and_costs_little_memory(served: Served) -> None:
    tenant = served.ingot.default_tenant.id
    first = EventIds(served.ingot.cursors).seal(tenant, (await served.ingot.events.publish(tenant, "large.first")).id)
    large = "x" * 60_000

    async def publish_large(number: int) -> None:
        await asyncio.gather(*(served.ingot.events.publish(tenant, "large.one", large) for _ in range(number)))

    await publish_large(200)
    with await open_and_read_nothing(served, first):
        async with follow_events(served) as follower:
            await publish_large(150)
            await follower.until(lambda follower: len(follower.events) == 150)
            buffered = 0
            async with asyncio.timeout(30):
                while buffered <= 64 * 1024:  # The stream writes until the buffer of its transport is full.
                    await served.client.get("/healthz")
                    transports = [connection.transport for connection in served.server.server_state.connections]
                    buffered = max(transport.get_write_buffer_size() for transport in transports)
            cached = served.ingot.feeds.cached_bytes
    assert buffered <= feeds.CHUNK_BYTES_MAX + 256 * 1024
    assert len(large) < cached <= feeds.RECENT_BYTES_MAX < 150 * len(large)


@pytest.mark.postgres
async def test_events_of_one_server_reach_streams_of_another(tmp_path: Path) -> None:
    database = await database_for(tmp_path / "database")
    async with serving(tmp_path, Settings(database_url=database.server_url)) as served:
        other = await PostgresStore.open(database.server_url, clock=SystemClock(), lease_seconds=180)
        async with follow_events(served) as follower:
            tenant = served.ingot.default_tenant.id
            published = await Events(other).publish(tenant, "order.paid", 1)
            job = (await Jobs(other, lease_seconds=180).enqueue(tenant, "noop")).job
            await follower.until(lambda follower: len(follower.events) == 2)
        await other.close()
        published_id = EventIds(served.ingot.cursors).seal(tenant, published.id)
        assert (follower.events[0].id, follower.events[0].event) == (published_id, "order.paid")
        assert follower.events[1].data["data"]["id"] == job.id
        async with follow_events(served, last_id=published_id) as again:
            await again.until(lambda follower: follower.events)
    assert again.ids == follower.ids[1:]


# -- publishing ---------------------------------------------------------------------------------------------


async def publish(served: Served, token: str | None = None, key: str | None = None, **body: Any) -> tuple[int, Any]:
    headers = {} if key is None else {"idempotency-key": key}
    response = await served.call("POST", "/events", token=token, json={"name": "order.paid", **body}, headers=headers)
    return response.status_code, response.json()


async def test_a_published_event_is_sent_to_followers(served: Served) -> None:
    async with follow_events(served, name="order") as follower:
        status, published = await publish(served, data={"a": "x\n\nevent: end\ndata: 1\r"})
        await follower.until(lambda follower: follower.events)
    assert (status, published) == (201, {"id": follower.ids[0], "cursor": follower.ids[0]})
    assert [(frame.event, frame.data["data"]) for frame in follower.frames] == [
        ("order.paid", {"a": "x\n\nevent: end\ndata: 1\r"})
    ]


async def test_line_breaks_in_published_data_do_not_break_the_frame(served: Served) -> None:
    async with follow_events(served, name="order") as follower:
        await served.call(
            "POST",
            "/events",
            content=b'{"name": "order.paid", "data": {\n\n"event: x":\r\n 1\r}}',
            headers={"content-type": "application/json"},
        )
        await follower.until(lambda follower: follower.events)
    assert [frame.data["data"] for frame in follower.frames] == [{"event: x": 1}]
    (stored,) = (await served.call("GET", "/events")).json()["items"]
    assert stored["data"] == {"event: x": 1}


async def test_an_event_that_is_published_again_with_its_key_is_stored_once(served: Served) -> None:
    status, published = await publish(served, data=1, dedupe_key="k")
    assert status == 201
    assert await publish(served, data=1, dedupe_key="k") == (200, published)
    assert await publish(served, data=1, key="k") == (200, published)
    status, problem = await publish(served, data=2, key="k")
    assert (status, problem["code"]) == (422, "idempotency_mismatch")
    status, problem = await publish(served, data=1, key="k", dedupe_key="other")
    assert (status, problem["code"]) == (422, "invalid_input")
    assert len(await event_log(served)) == 1


async def test_a_token_publishes_only_events_that_its_grants_name(served: Served) -> None:
    token = await served.token(Grant(action="events.create", resource="events/order"))
    assert (await publish(served, token))[0] == 201
    assert (await publish(served, token, name="orders.paid"))[0] == 403


@on_one_server(
    ("body", "status", "code"),
    [
        ({"name": "job.created"}, 422, "invalid_input"),
        ({"name": "x\nid: 1"}, 422, "invalid_input"),
        ({"name": 7}, 422, "invalid_input"),
        ({"name": "a.b", "more": 1}, 422, "invalid_input"),
        ({"name": "a.b", "data": "x" * 70_000}, 413, "event_too_large"),
    ],
)
async def test_an_invalid_event_is_rejected(served: Served, body: dict[str, Any], status: int, code: str) -> None:
    response_status, problem = await publish(served, **body)
    assert (response_status, problem["code"]) == (status, code)
    assert await event_log(served) == []


# -- gaps ---------------------------------------------------------------------------------------------------


async def test_a_reader_behind_the_kept_events_gets_a_gap_and_can_continue(served: Served) -> None:
    for _ in range(6):
        await publish(served)
    ids = [event["id"] for event in await event_log(served)]
    assert (await served.ingot.events.forget(keep=1, limit=3)).batches == 3
    response = await served.call("GET", "/events", params={"after": ids[0]})
    assert (response.status_code, response.json()["code"]) == (410, "gap")
    assert ids[2] in response.json()["hint"]
    async with follow_events(served, last_id=ids[0]) as follower:
        await follower.until(lambda follower: len(follower.events) == 4)
    assert [(frame.id, frame.event) for frame in follower.events] == [
        (ids[2], "gap"),
        *((event_id, "order.paid") for event_id in ids[3:]),
    ]
    assert follower.frames[0].data == {"after": ids[2]}
    async with follow_events(served, last_id=ids[2]) as follower:
        await follower.until(lambda follower: len(follower.events) == 3)
    assert follower.ids == ids[3:]
