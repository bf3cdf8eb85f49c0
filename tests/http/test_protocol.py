"""Bytes that are no request, come too slowly or are too many: an answer or an end, and nothing gets to a handler."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from ingot.http import app, protocol
from ingot.settings import Settings
from tests.http.one_server import on_one_server
from tests.http.raw_connections import BODY, connected, connections, head, statuses, told
from tests.http.serving import Served, serving
from tests.waiting import eventually

HOST = b"host: x\r\n"
UPGRADE = [b"connection: upgrade, http2-settings", b"upgrade: h2c", b"http2-settings: AAMAAABkAARAAAAAAAIAAAAA"]


def left(served: Served) -> list[int]:
    """What is still to come of requests for another protocol."""
    return [one.remaining_body_bytes for one in connections(served) if one.remaining_body_bytes is not None]


def is_left(served: Served, count: int) -> bool:
    return left(served) == [count]


def is_ahead(served: Served, count: int) -> bool:
    return ahead(served) == [count]


def ahead(served: Served) -> list[int]:
    """How many requests wait for their turn."""
    return [len(one.pipeline) for one in connections(served) if one.pipeline]


def waiting_claim(served: Served) -> bytes:
    body = b'{"types": ["noop"], "wait_seconds": 60}'
    return head(served, b"host: x", b"content-length: %d" % len(body), path=b"/api/v1/jobs/claim") + body


async def jobs(served: Served) -> int:
    return len((await served.call("GET", "/jobs")).json()["items"])


@on_one_server(
    ("lines", "body"),
    [
        ([b"host: x", b"content-length: 16", b"content-length: 17"], BODY),
        ([b"host: x", b"content-length: 16", b"content-length: 16"], BODY),
        ([b"host: x", b"content-length: 16, 16"], BODY),
        ([b"host: x", b"content-length: +16"], BODY),
        ([b"host: x", b"content-length: -1"], BODY),
        ([b"host: x", b"content-length: 0x10"], BODY),
        ([b"host: x", b"content-length: 16", b"transfer-encoding: chunked"], b"10\r\n" + BODY + b"\r\n0\r\n\r\n"),
        ([b"host: x", b"transfer-encoding: chunked", b"content-length: 16"], b"10\r\n" + BODY + b"\r\n0\r\n\r\n"),
        ([b"host: x", b"transfer-encoding: gzip, chunked"], b"10\r\n" + BODY + b"\r\n0\r\n\r\n"),
        ([b"host: x", b"transfer-encoding: gzip", b"transfer-encoding: chunked"], b"10\r\n" + BODY + b"\r\n0\r\n\r\n"),
        ([b"host: x", b"transfer-encoding: chunked, identity"], b"10\r\n" + BODY + b"\r\n0\r\n\r\n"),
        ([b"host: x", b"transfer-encoding: xchunked"], BODY),
        ([b"host: x", b"transfer-encoding : chunked"], b"10\r\n" + BODY + b"\r\n0\r\n\r\n"),
        ([b"host: x", b"transfer-encoding: chunked"], b"xyz\r\n" + BODY + b"\r\n0\r\n\r\n"),
        ([b"host: x", b"transfer-encoding: chunked"], b"-1\r\n" + BODY + b"\r\n0\r\n\r\n"),
        ([b"host: x", b"transfer-encoding: chunked"], b"fffffffffffffffff\r\n" + BODY + b"\r\n0\r\n\r\n"),
        ([b"host: x", b"transfer-encoding: chunked"], b"10\r\n" + BODY + b"xx\r\n0\r\n\r\n"),
        ([b"host: x", b"x-folded: a", b" b", b"content-length: 16"], BODY),
        ([b"host: x", b"x-nul: a\x00b", b"content-length: 16"], BODY),
        ([b"host: x", b"x-cr: a\rb", b"content-length: 16"], BODY),
        ([b"host: x", b"x name: a", b"content-length: 16"], BODY),
        ([b"host: x", b": a", b"content-length: 16"], BODY),
        ([b"content-length: 16"], BODY),
        ([b"host: x", b"host: y", b"content-length: 16"], BODY),
    ],
)
async def test_what_can_be_read_in_two_ways_is_read_in_none(served: Served, lines: list[bytes], body: bytes) -> None:
    answers = await told(served, head(served, *lines) + body)
    assert statuses(answers) == [400], answers
    assert b'"code":"bad_request"' in answers
    assert await jobs(served) == 0


@on_one_server(
    "line",
    [
        b"CONNECT localhost:22 HTTP/1.1",
        b"GET http://example.com HTTP/1.1",
        b"GET /\xff HTTP/1.1",
        b"GET nowhere HTTP/1.1",
        b"BREW /pot HTTP/1.1",
        b"get /healthz HTTP/1.1",
        b"GET /healthz HTTP/2.0",
        b"PRI * HTTP/2.0",
        b"GET /healthz",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_what_is_no_request_is_told_so(served: Served, line: bytes) -> None:
    assert statuses(await told(served, line + b"\r\n" + HOST + b"\r\n")) == [400]


async def test_a_target_with_a_host_is_the_same_as_one_without(served: Served) -> None:
    line = b"GET http://elsewhere/healthz HTTP/1.1\r\n"
    assert statuses(await told(served, line + HOST + b"connection: close\r\n\r\n")) == [200]


@on_one_server("method", [b"TRACE", b"OPTIONS", b"PUT", b"DELETE"])
async def test_a_method_that_a_route_does_not_take_is_told(served: Served, method: bytes) -> None:
    assert statuses(await told(served, method + b" /healthz HTTP/1.1\r\n" + HOST + b"connection: close\r\n\r\n")) == [
        405
    ]


async def test_an_old_client_is_answered_and_its_connection_ends(served: Served) -> None:
    assert statuses(await told(served, b"GET /healthz HTTP/1.0\r\n\r\n")) == [200]
    length = b"content-length: 16"
    assert statuses(await told(served, head(served, length, version=b"1.0") + BODY)) == [201]


async def test_another_protocol_is_not_spoken(served: Served) -> None:
    lines = b"connection: upgrade\r\nupgrade: h2c\r\n\r\n"
    behind = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
    assert statuses(await told(served, b"GET /healthz HTTP/1.1\r\n" + HOST + lines + behind)) == [200]


@pytest.mark.parametrize("more", [False, True], ids=["", "more"])
@pytest.mark.parametrize("cuts", [[], [0], [5], [0, 5, 15]], ids=str)
async def test_who_asks_for_another_protocol_is_heard_to_the_end(served: Served, cuts: list[int], more: bool) -> None:
    whole = head(served, b"host: x", b"content-length: 16")
    asking = head(served, b"host: x", *UPGRADE, b"content-length: 16")
    async with connected(served) as (reader, writer):
        writer.write(asking + BODY[: cuts[0] if cuts else 16] + (whole + BODY if more and not cuts else b""))
        for start, end in pairwise([*cuts, 16]):
            await eventually(partial(is_left, served, 16 - start))
            writer.write(BODY[start:end] + (whole + BODY if more and end == 16 else b""))
        answers = await reader.read()
    assert statuses(answers) == [201], answers
    assert b"connection: close" in answers
    assert await jobs(served) == 1


async def test_a_heartbeat_in_a_request_for_another_protocol_names_its_jobs(served: Served) -> None:
    job = await served.make_job()
    fence = (await served.claim())["fence"]
    body = b'{"fence": %d, "log": "half done"}' % fence
    path = b"/api/v1/jobs/" + job["id"].encode() + b"/heartbeat"
    beat = head(served, b"host: x", *UPGRADE, b"content-length: %d" % len(body), path=path) + body
    assert statuses(await told(served, beat)) == [200]
    assert (await served.call("GET", f"/jobs/{job['id']}/log")).json()["text"] == "half done"


async def test_a_request_for_another_protocol_waits_for_its_turn(served: Served) -> None:
    good = head(served, b"host: x", b"content-length: 16") + BODY
    asking = head(served, b"host: x", *UPGRADE, b"content-length: 16") + BODY
    assert statuses(await told(served, good + asking + good)) == [201, 201]
    assert await jobs(served) == 2


async def test_a_body_before_another_protocol_must_end_too(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "BODY_SECONDS_MAX", 0.1)
    asking = head(served, b"host: x", *UPGRADE, b"content-length: 17")
    answers = await told(served, asking + BODY)
    assert statuses(answers) == [408], answers
    assert await jobs(served) == 0


async def test_a_body_before_another_protocol_is_bounded_too(served: Served) -> None:
    asking = head(served, b"host: x", *UPGRADE, b"content-length: 1000000000")
    assert statuses(await told(served, asking + BODY)) == [413]


async def test_chunks_and_another_protocol_are_not_read(served: Served) -> None:
    asking = head(served, b"host: x", *UPGRADE, b"transfer-encoding: chunked")
    answers = await told(served, asking + b"10\r\n" + BODY + b"\r\n0\r\n\r\n")
    assert statuses(answers) == [400]
    assert b'"hint":"Leave out Upgrade."' in answers
    assert await jobs(served) == 0


async def test_what_stands_behind_a_body_is_no_header(served: Served) -> None:
    lines = [b"POST /api/v1/jobs HTTP/1.1", b"host: x", b"content-type: application/json", b"connection: close"]
    whole = b"\r\n".join([*lines, b"transfer-encoding: chunked", b"", b"10", BODY, b"0"])
    hidden = b"\r\nauthorization: Bearer " + served.operator.encode() + b"\r\n\r\n"
    assert statuses(await told(served, whole + hidden)) == [401]
    assert await jobs(served) == 0


@on_one_server(
    "lines",
    [
        b"x-long: " + b"a" * 100_000,
        b"\r\n".join(b"x-%d: a" % number for number in range(101)),
        b"\r\n".join(b"x-%d: " % number + b"a" * 900 for number in range(90)),
    ],
)
async def test_a_head_that_is_too_large_is_told_so(served: Served, lines: bytes) -> None:
    answers = await told(served, b"GET /healthz HTTP/1.1\r\n" + HOST + lines + b"\r\n\r\n")
    assert statuses(answers) == [431], answers[:200]


async def test_a_head_that_comes_in_parts_is_not_larger_than_another(served: Served) -> None:
    line = b"GET /healthz HTTP/1.1\r\n" + HOST + b"x-long: " + b"a" * (protocol.HEAD_BYTES_MAX - 100)
    for rest, status in ((b"\r\n", 200), (b"a" * 100 + b"\r\n", 431)):
        async with connected(served) as (reader, writer):
            for part in (line, rest + b"connection: close\r\n", b"\r\n"):
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.02)
            assert statuses(await reader.read()) == [status]


async def test_a_path_that_is_too_long_is_told_so(served: Served) -> None:
    assert statuses(await told(served, b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n")) == [431]


@pytest.mark.parametrize("where", ["head", "extension", "trailer"])
async def test_what_has_no_end_is_not_kept(served: Served, where: str) -> None:
    start = {
        "head": b"GET /healthz HTTP/1.1\r\nx-long: ",
        "extension": head(served, b"host: x", b"transfer-encoding: chunked") + b"10;",
        "trailer": head(served, b"host: x", b"transfer-encoding: chunked") + b"10\r\n" + BODY + b"\r\n0\r\nx-long: ",
    }[where]
    async with connected(served) as (reader, writer):
        writer.write(start)
        sent = 0
        answering = asyncio.create_task(reader.read())
        while not answering.done():
            writer.write(b"a" * 8192)
            await writer.drain()
            sent += 8192
        assert statuses(await answering) == [431]
        assert sent < 10_000_000
    assert await jobs(served) == 0


# -- slow ones ----------------------------------------------------------------------------------------------


async def test_a_head_that_does_not_get_whole_is_told_so(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS_MAX", 0.2)
    async with connected(served) as (reader, writer):
        answering = asyncio.create_task(reader.read())
        writer.write(b"GET /healthz HTTP/1.1\r\n" + HOST)
        while not answering.done():  # Every letter that comes is not a reason to wait longer.
            writer.write(b"x-a: b\r\n"[:1])
            await asyncio.sleep(0.01)
        answers = await answering
    assert statuses(answers) == [408]
    assert b'"code":"head_timeout"' in answers


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"\r\n\r\n"])
async def test_a_connection_that_asks_for_nothing_ends(
    served: Served, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS_MAX", 0.1)
    assert await told(served, sent) == b""


async def test_a_body_that_nobody_waits_for_any_more_must_end(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS_MAX", 0.1)
    lines = b"POST /api/v1/jobs HTTP/1.1\r\n" + HOST + b"content-length: 1000\r\n\r\n{"
    assert statuses(await told(served, lines)) == [401]


async def test_who_waits_for_an_answer_is_not_slow(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS_MAX", 0.05)
    body = b'{"types": ["noop"], "wait_seconds": 0.4}'
    claim = head(served, b"host: x", b"content-length: %d" % len(body), path=b"/api/v1/jobs/claim") + body
    half = b"GET /healthz HTTP/1.1\r\n"
    async with connected(served) as (reader, writer):
        writer.write(claim + half)
        assert statuses(await reader.readuntil(b"\r\n\r\n")) == [204]
        writer.write(HOST + b"\r\n")
        assert statuses(await reader.readuntil(b"\r\n\r\n")) == [200]


# -- many at once -------------------------------------------------------------------------------------------


async def test_requests_one_behind_the_other_are_answered_in_order(served: Served) -> None:
    asks = [b"GET /n/%d HTTP/1.1\r\n" % number + HOST + b"\r\n" for number in range(100)]
    last = b"GET /healthz HTTP/1.1\r\n" + HOST + b"connection: close\r\n\r\n"
    answers = await told(served, b"".join([*asks, last]))
    assert statuses(answers) == [404] * 100 + [200]
    places = [answers.index(b"nothing at /n/%d" % number + b'"') for number in range(100)]
    assert places == sorted(places)


async def test_too_many_requests_one_behind_the_other_are_not_kept(served: Served) -> None:
    asks = b"".join([b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"] * 1000)
    assert statuses(await told(served, asks)) == [200] * (protocol.PIPELINED_REQUESTS_MAX + 1) + [400]


async def test_what_was_asked_before_is_answered_before_nonsense_is(served: Served) -> None:
    good = head(served, b"host: x", b"content-length: 16") + BODY
    assert statuses(await told(served, good + b"nonsense\r\n\r\n")) == [201, 400]
    bad_body = head(served, b"host: x", b"transfer-encoding: chunked") + b"nonsense\r\n"
    assert statuses(await told(served, good + bad_body)) == [201, 400]
    assert await jobs(served) == 2


async def test_who_goes_away_with_more_to_ask_takes_no_job(served: Served) -> None:
    async with connected(served) as (_, writer):
        writer.write(waiting_claim(served) + b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n")
        await eventually(lambda: served.ingot.jobs.waiting_claims == 1)
    await eventually(lambda: served.ingot.jobs.waiting_claims == 0)
    job = await served.make_job()
    assert (await served.claim())["id"] == job["id"]


async def test_who_asks_for_more_while_it_waits_and_goes_away_takes_no_job(served: Served) -> None:
    async with connected(served) as (_, writer):
        writer.write(waiting_claim(served))
        await eventually(lambda: served.ingot.jobs.waiting_claims == 1)
        for count in (1, 2):
            writer.write(b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n")
            await eventually(partial(is_ahead, served, count))
    await eventually(lambda: served.ingot.jobs.waiting_claims == 0)
    job = await served.make_job()
    assert (await served.claim())["id"] == job["id"]


async def test_what_waits_for_its_turn_is_bounded(served: Served) -> None:
    ask = b"GET /healthz HTTP/1.1\r\n" + HOST + b"x-long: " + b"a" * 30_000 + b"\r\n\r\n"
    async with connected(served) as (reader, writer):
        writer.write(waiting_claim(served))
        await eventually(lambda: served.ingot.jobs.waiting_claims == 1)
        for count in (1, 2, 3, 4):
            writer.write(ask)
            await eventually(partial(is_ahead, served, count))
        (one,) = (one for one in connections(served) if one.pipeline)
        assert one.flow.read_paused
        writer.write(ask)
        await served.make_job()
        for status in [200] * 6:
            answer = await reader.readuntil(b"\r\n\r\n")
            assert statuses(answer) == [status]
            await reader.readexactly(int(re.findall(rb"content-length: (\d+)", answer)[0]))


async def test_a_client_that_asks_first_sends_its_body_when_told(served: Served) -> None:
    async with connected(served) as (reader, writer):
        writer.write(head(served, b"host: x", b"content-length: 16", b"expect: 100-continue"))
        assert statuses(await reader.readuntil(b"\r\n\r\n")) == [100]
        writer.write(BODY)
        assert statuses(await reader.readuntil(b"\r\n\r\n")) == [201]
    stranger = b"POST /api/v1/jobs HTTP/1.1\r\n" + HOST + b"content-length: 16\r\nexpect: 100-continue\r\n\r\n"
    async with connected(served) as (reader, writer):
        writer.write(stranger)
        assert statuses(await reader.readuntil(b"\r\n\r\n")) == [401]


async def test_connections_above_the_bound_are_turned_away(tmp_path: Path) -> None:
    async with serving(tmp_path, Settings(connections_max=20)) as served:
        host, port = served.url.removeprefix("http://").split(":")
        taken = [await asyncio.open_connection(host, int(port)) for _ in range(20)]
        for reader, writer in taken:
            writer.write(b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n")
            assert statuses(await reader.readuntil(b"\r\n\r\n")) == [200]
        for _ in range(protocol.LINGERING_CONNECTIONS_MAX):
            answers = await told(served, b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n")
            assert statuses(answers) == [503]
            assert b"retry-after: 5" in answers
        taken[0][1].close()
        await taken[0][1].wait_closed()
        await eventually(lambda: len(served.server.server_state.connections) < 20)
        assert (await served.client.get("/healthz")).status_code == 200
        for _, writer in taken:
            writer.close()
