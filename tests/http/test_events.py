"""Live events over HTTP: all of them, in order, once, and only to those who may see them."""

from __future__ import annotations

import asyncio
import random
import socket
from pathlib import Path
from typing import Any

import pytest

from ingot.events import feeds
from ingot.http import streams
from ingot.http.routes import PREFIX
from ingot.identity.grants import Grant
from ingot.jobs.job_options import new_job
from ingot.settings import Settings
from ingot.wiring import services
from tests.http.event_follower import following
from tests.http.one_server import on_one_server
from tests.http.serving import Served, serving
from tests.postgres import database_for


async def make_jobs(served: Served, number: int, tenant: str | None = None) -> None:
    tenant = tenant or served.ingot.default_tenant.id
    await served.ingot.jobs.enqueue_many([new_job(tenant, "noop", n) for n in range(number)])


async def log(served: Served) -> list[dict[str, Any]]:
    """The whole log of the default tenant."""
    items: list[dict[str, Any]] = []
    while True:
        query = {"limit": 1000} | ({"after": items[-1]["id"]} if items else {})
        page = (await served.call("GET", "/events", params=query)).json()
        if not page["items"]:
            return items
        items += page["items"]


async def test_a_stream_begins_now_and_tells_what_happens_as_the_list_does(served: Served) -> None:
    await make_jobs(served, 3)
    async with following(served) as follower:
        await served.make_job()
        await served.claim()
        await follower.until(lambda one: len(one.events) == 2)
    told = [{"id": frame.id, "name": frame.event, **frame.data} for frame in follower.events]
    assert told == (await log(served))[3:]
    assert [frame.event for frame in follower.events] == ["job.created", "job.started"]


async def test_resuming_under_load_has_no_gap_and_no_repeat(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    # Few are kept, so that those who come back read the log and join again while it grows.
    monkeypatch.setattr(feeds, "RECENT_EVENTS_MAX", 40)
    monkeypatch.setattr(feeds, "READ_EVENTS_MAX", 15)
    chance = random.Random(5)
    loaded = asyncio.Event()
    await make_jobs(served, 1)
    first = (await log(served))[0]["id"]

    async def load() -> None:
        for _ in range(120):
            await make_jobs(served, chance.randint(1, 25))
        loaded.set()

    async def steady() -> list[str]:
        async with following(served, last=first) as one:
            await loaded.wait()
            newest = (await log(served))[-1]["id"]
            await one.until(lambda one: one.ids and one.ids[-1] == newest)
            return one.ids

    async def restless() -> list[str]:
        ids: list[str] = []
        while not loaded.is_set():
            many = chance.randint(1, 60)
            async with following(served, last=ids[-1] if ids else first) as one:
                await one.until(lambda one: len(one.ids) >= many or loaded.is_set())  # noqa: B023
                ids += one.ids
        newest = (await log(served))[-1]["id"]
        if ids[-1] != newest:
            async with following(served, last=ids[-1]) as one:
                await one.until(lambda one: one.ids and one.ids[-1] == newest)
                ids += one.ids
        return ids

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        readers = [group.create_task(steady()) for _ in range(3)] + [group.create_task(restless()) for _ in range(4)]
        group.create_task(load())
    expected = [event["id"] for event in await log(served)][1:]
    for reader in readers:
        assert reader.result() == expected


async def test_who_is_behind_the_kept_events_reads_the_log(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "RECENT_EVENTS_MAX", 5)
    await make_jobs(served, 1)
    first = (await log(served))[0]["id"]
    async with following(served) as one:
        await make_jobs(served, 300)
        await one.until(lambda one: len(one.events) == 300)
        async with following(served, last=first) as late:
            await late.until(lambda late: len(late.events) == 300)
            await served.make_job()
            await late.until(lambda late: len(late.events) == 301)
    assert late.ids == [event["id"] for event in await log(served)][1:]


async def test_only_what_the_grants_allow_is_told(served: Served) -> None:
    token = await served.token(Grant(action="events.read", resource="events/job.started"))
    async with following(served, token=token) as one, following(served) as everything:
        await served.make_job()
        await served.claim()
        await served.make_job()
        await served.claim()
        await everything.until(lambda one: len(one.events) == 4)
        await one.until(lambda one: len(one.events) == 2)
    assert {frame.event for frame in one.frames} == {"job.started"}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("job", ["job.created", "job.started"]),
        ("job.started", ["job.started"]),
        ("jo,job.created", ["job.created"]),
        ("job.started,job.created", ["job.created", "job.started"]),
        ("batch,job.s", []),
    ],
)
async def test_names_are_asked_for_by_whole_segments(served: Served, name: str, told: list[str]) -> None:
    async with following(served, name=name) as one, following(served) as everything:
        await served.make_job()
        await served.claim()
        await everything.until(lambda one: len(one.events) == 2)
        await one.until(lambda one: len(one.events) == len(told))
    assert [frame.event for frame in one.frames] == told


async def test_what_happens_to_another_tenant_is_never_told(served: Served) -> None:
    other = await served.ingot.tenants.create("other")
    token = await served.token(tenant=other.id)
    async with following(served) as mine, following(served, token=token) as theirs:
        for tenant in (None, other.id, None, other.id):
            await make_jobs(served, 2, tenant)
        for one in (mine, theirs):
            await one.until(lambda one: len(one.events) == 4)
    assert {frame.data["tenant"] for frame in mine.frames} == {served.ingot.default_tenant.id}
    assert {frame.data["tenant"] for frame in theirs.frames} == {other.id}
    assert not set(mine.ids) & set(theirs.ids)


@on_one_server("after", ["", "x", "0", "g" * 16, "f" * 16, "0x00000000000001", "A" * 16, "é"])
async def test_what_is_no_id_of_an_event_is_refused_before_the_stream(served: Served, after: str) -> None:
    await make_jobs(served, 1)
    answer = await served.call("GET", "/events/stream", params={"after": after})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_cursor")
    if after and after.isascii():
        answer = await served.call("GET", "/events/stream", headers={"last-event-id": after})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_cursor")


async def test_the_header_counts_more_than_the_query(served: Served) -> None:
    await make_jobs(served, 3)
    ids = [event["id"] for event in await log(served)]
    async with following(served, last=ids[1], after=ids[0]) as one:
        await one.until(lambda one: one.events)
    assert one.ids == ids[2:]


async def test_statistics_come_after_something_happened_and_have_no_id(served: Served) -> None:
    async with following(served, name="stats") as one:
        await make_jobs(served, 7)
        await one.until(lambda one: one.frames and one.frames[-1].data["data"]["counts"]["queued"] == 7)
    assert {(frame.event, frame.id) for frame in one.frames} == {("stats.updated", None)}
    assert one.frames[-1].data["data"] == (await served.call("GET", "/jobs/summary")).json() | {
        "oldest_queued_seconds": one.frames[-1].data["data"]["oldest_queued_seconds"]
    }


async def test_statistics_are_told_once_in_a_while_however_much_happens(served: Served) -> None:
    loop = asyncio.get_running_loop()
    async with following(served, name="stats") as one:
        began = loop.time()
        for _ in range(30):
            await make_jobs(served, 1)
        await one.until(lambda one: one.frames and one.frames[-1].data["data"]["counts"]["queued"] == 30)
        assert len(one.frames) <= 2 + (loop.time() - began) / feeds.STATS_SECONDS


async def test_silence_is_broken_by_comments(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "HEARTBEAT_SECONDS", 0.3)
    monkeypatch.setattr(feeds, "TICK_SECONDS", 0.1)
    async with following(served, name="nothing.of.this") as one:
        await one.until(lambda one: len(one.comments) == 1)
        await make_jobs(served, 1)  # What is not seen does not count as something said.
        await one.until(lambda one: len(one.comments) == 3)
    assert one.frames == []


async def test_the_log_is_read_while_somebody_follows_and_no_longer(served: Served) -> None:
    assert len(served.ingot.feeds) == 0
    async with following(served), following(served):
        assert len(served.ingot.feeds) == 1
        (reading,) = [task for task in asyncio.all_tasks() if task.get_name().startswith("events.feed")]
    async with asyncio.timeout(30):
        await asyncio.wait([reading])
    assert len(served.ingot.feeds) == 0


async def test_a_stream_ends_within_five_seconds_of_its_token(served: Served) -> None:
    made = await served.ingot.credentials.create_token(
        served.ingot.default_tenant.id, description="x", grants=[Grant(action="events.read")]
    )
    async with following(served, token=made.text) as one:
        await served.ingot.credentials.revoke_token(None, made.token.id)
        async with asyncio.timeout(30):
            await one.until(lambda one: one.frames)
    assert [(frame.event, frame.data) for frame in one.frames] == [("end", {"reason": "unauthorized"})]
    assert streams.CHECK_SECONDS < 5


async def open_and_read_nothing(served: Served, last: str) -> socket.socket:
    """A connection whose other end asked for a stream, and takes nothing of it."""
    host, port = served.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, (host, int(port)))
    head = f"GET {PREFIX}/events/stream HTTP/1.1\r\nhost: x\r\nlast-event-id: {last}\r\n"
    await loop.sock_sendall(connection, f"{head}authorization: Bearer {served.operator}\r\n\r\n".encode())
    assert (await loop.sock_recv(connection, 12)) == b"HTTP/1.1 200"
    return connection


async def test_who_reads_nothing_delays_nobody_and_costs_no_memory(served: Served) -> None:
    tenant = served.ingot.default_tenant.id
    first = (await served.ingot.events.publish(tenant, "large.first")).id
    large = "x" * 60_000

    async def publish_large(number: int) -> None:
        await asyncio.gather(*(served.ingot.events.publish(tenant, "large.one", large) for _ in range(number)))

    await publish_large(200)
    with await open_and_read_nothing(served, first):
        async with following(served) as one:
            await publish_large(150)
            await one.until(lambda one: len(one.events) == 150)
            held = 0
            async with asyncio.timeout(30):
                while held <= 64 * 1024:  # The stream goes on until its transport says that it is full.
                    await served.client.get("/healthz")
                    transports = [known.transport for known in served.server.server_state.connections]
                    held = max(transport.get_write_buffer_size() for transport in transports)
            kept = served.ingot.feeds.cached_bytes
    assert held <= feeds.CHUNK_BYTES_MAX + 256 * 1024
    assert len(large) < kept <= feeds.RECENT_BYTES_MAX < 150 * len(large)


@pytest.mark.postgres
async def test_what_one_server_is_told_comes_to_streams_of_another(tmp_path: Path) -> None:
    database = await database_for(tmp_path / "database")
    async with serving(tmp_path, Settings(database_url=database.server_url)) as served:
        async with (
            services.open(settings=Settings(database_url=database.server_url)) as other,
            following(served) as one,
        ):
            tenant = other.default_tenant.id
            made = await other.events.publish(tenant, "order.paid", 1)
            job = (await other.jobs.enqueue(tenant, "noop")).job
            await one.until(lambda one: len(one.events) == 2)
        assert (one.events[0].id, one.events[0].event) == (made.id, "order.paid")
        assert one.events[1].data["data"]["id"] == job.id
        async with following(served, last=made.id) as again:
            await again.until(lambda one: one.events)
    assert again.ids == one.ids[1:]


# -- publishing ---------------------------------------------------------------------------------------------


async def publish(served: Served, token: str | None = None, key: str | None = None, **body: Any) -> tuple[int, Any]:
    headers = {} if key is None else {"idempotency-key": key}
    answer = await served.call("POST", "/events", token=token, json={"name": "order.paid", **body}, headers=headers)
    return answer.status_code, answer.json()


async def test_a_published_event_is_told_to_those_who_follow(served: Served) -> None:
    async with following(served, name="order") as one:
        status, made = await publish(served, data={"a": "x\n\nevent: end\ndata: 1\r"})
        await one.until(lambda one: one.events)
    assert (status, made) == (201, {"id": one.ids[0], "cursor": one.ids[0]})
    assert [(frame.event, frame.data["data"]) for frame in one.frames] == [
        ("order.paid", {"a": "x\n\nevent: end\ndata: 1\r"})
    ]


async def test_line_breaks_between_the_parts_of_data_break_no_frame(served: Served) -> None:
    async with following(served, name="order") as one:
        await served.call(
            "POST",
            "/events",
            content=b'{"name": "order.paid", "data": {\n\n"event: x":\r\n 1\r}}',
            headers={"content-type": "application/json"},
        )
        await one.until(lambda one: one.events)
    assert [frame.data["data"] for frame in one.frames] == [{"event: x": 1}]
    (kept,) = (await served.call("GET", "/events")).json()["items"]
    assert kept["data"] == {"event: x": 1}


async def test_what_is_sent_again_is_there_once(served: Served) -> None:
    status, made = await publish(served, data=1, dedupe_key="k")
    assert status == 201
    assert await publish(served, data=1, dedupe_key="k") == (200, made)
    assert await publish(served, data=1, key="k") == (200, made)
    status, problem = await publish(served, data=2, key="k")
    assert (status, problem["code"]) == (422, "idempotency_mismatch")
    status, problem = await publish(served, data=1, key="k", dedupe_key="other")
    assert (status, problem["code"]) == (422, "invalid_input")
    assert len(await log(served)) == 1


async def test_a_token_publishes_what_its_grants_name(served: Served) -> None:
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
async def test_what_cannot_be_published_is_refused(
    served: Served, body: dict[str, Any], status: int, code: str
) -> None:
    answered, problem = await publish(served, **body)
    assert (answered, problem["code"]) == (status, code)
    assert await log(served) == []


# -- what is not kept any more ------------------------------------------------------------------------------


async def test_who_is_behind_what_is_kept_is_told_and_goes_on(served: Served) -> None:
    for _ in range(6):
        await publish(served)
    ids = [event["id"] for event in await log(served)]
    assert (await served.ingot.events.forget(keep=1, limit=3)).batches == 3
    answer = await served.call("GET", "/events", params={"after": ids[0]})
    assert (answer.status_code, answer.json()["code"]) == (410, "gap")
    assert ids[2] in answer.json()["hint"]
    async with following(served, last=ids[0]) as one:
        await one.until(lambda one: len(one.events) == 4)
    assert [(frame.id, frame.event) for frame in one.events] == [
        (ids[2], "gap"),
        *((kept, "order.paid") for kept in ids[3:]),
    ]
    assert one.frames[0].data == {"after": ids[2]}
    async with following(served, last=ids[2]) as one:
        await one.until(lambda one: len(one.events) == 3)
    assert one.ids == ids[3:]
