"""Malformed, slow and oversized requests: each gets an error or loses its connection, and none reaches a handler."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from ingot.http import json_body, protocol
from ingot.settings import Settings
from tests.http.one_server import on_one_server
from tests.http.raw_connections import BODY, connected, open_connections, request_head, send_and_read, statuses
from tests.http.serving import Served, serving
from tests.waiting import eventually

HOST = b"host: x\r\n"
UPGRADE = [b"connection: upgrade, http2-settings", b"upgrade: h2c", b"http2-settings: AAMAAABkAARAAAAAAAIAAAAA"]


def remaining(served: Served) -> list[int]:
    """The missing body bytes of each upgrade request."""
    left = [connection.remaining_body_bytes for connection in open_connections(served)]
    return [count for count in left if count is not None]


def is_remaining(served: Served, count: int) -> bool:
    return remaining(served) == [count]


def is_pipelined(served: Served, count: int) -> bool:
    return pipelined(served) == [count]


def pipelined(served: Served) -> list[int]:
    """The number of pipelined requests of each connection."""
    return [len(connection.pipeline) for connection in open_connections(served) if connection.pipeline]


DISCONNECT_SECONDS_MAX = 45.0  # Less than the wait of the claim below, after which it ends by itself.


def waiting_claim(served: Served) -> bytes:
    body = b'{"types": ["noop"], "wait_seconds": 60}'
    return request_head(served, b"host: x", b"content-length: %d" % len(body), path=b"/api/v1/jobs/claim") + body


async def count_jobs(served: Served) -> int:
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
async def test_an_ambiguous_request_is_rejected(served: Served, lines: list[bytes], body: bytes) -> None:
    responses = await send_and_read(served, request_head(served, *lines) + body)
    assert statuses(responses) == [400], responses
    assert b'"code":"bad_request"' in responses
    assert await count_jobs(served) == 0


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
async def test_an_invalid_request_line_is_rejected(served: Served, line: bytes) -> None:
    assert statuses(await send_and_read(served, line + b"\r\n" + HOST + b"\r\n")) == [400]


async def test_an_absolute_request_target_is_accepted(served: Served) -> None:
    line = b"GET http://elsewhere/healthz HTTP/1.1\r\n"
    assert statuses(await send_and_read(served, line + HOST + b"connection: close\r\n\r\n")) == [200]


@on_one_server("method", [b"TRACE", b"OPTIONS", b"PUT", b"DELETE"])
async def test_a_method_that_a_route_does_not_have_is_405(served: Served, method: bytes) -> None:
    assert statuses(
        await send_and_read(served, method + b" /healthz HTTP/1.1\r\n" + HOST + b"connection: close\r\n\r\n")
    ) == [405]


async def test_an_http_1_0_request_is_answered_and_its_connection_closed(served: Served) -> None:
    assert statuses(await send_and_read(served, b"GET /healthz HTTP/1.0\r\n\r\n")) == [200]
    length = b"content-length: 16"
    assert statuses(await send_and_read(served, request_head(served, length, version=b"1.0") + BODY)) == [201]


async def test_an_upgrade_request_is_answered_with_http_1_and_the_connection_closed(served: Served) -> None:
    lines = b"connection: upgrade\r\nupgrade: h2c\r\n\r\n"
    behind = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
    assert statuses(await send_and_read(served, b"GET /healthz HTTP/1.1\r\n" + HOST + lines + behind)) == [200]


@pytest.mark.parametrize("more", [False, True], ids=["", "more"])
@pytest.mark.parametrize("cuts", [[], [0], [5], [0, 5, 15]], ids=str)
async def test_the_body_of_an_upgrade_request_is_read_to_its_end(served: Served, cuts: list[int], more: bool) -> None:
    plain = request_head(served, b"host: x", b"content-length: 16")
    upgrade = request_head(served, b"host: x", *UPGRADE, b"content-length: 16")
    async with connected(served) as (reader, writer):
        writer.write(upgrade + BODY[: cuts[0] if cuts else 16] + (plain + BODY if more and not cuts else b""))
        for start, end in pairwise([*cuts, 16]):
            await eventually(partial(is_remaining, served, 16 - start))
            writer.write(BODY[start:end] + (plain + BODY if more and end == 16 else b""))
        responses = await reader.read()
    assert statuses(responses) == [201], responses
    assert b"connection: close" in responses
    assert await count_jobs(served) == 1


async def test_a_heartbeat_in_an_upgrade_request_reaches_its_job(served: Served) -> None:
    job = await served.make_job()
    fence = (await served.claim())["fence"]
    body = b'{"fence": %d, "log": "half done"}' % fence
    path = b"/api/v1/jobs/" + job["id"].encode() + b"/heartbeat"
    heartbeat = request_head(served, b"host: x", *UPGRADE, b"content-length: %d" % len(body), path=path) + body
    assert statuses(await send_and_read(served, heartbeat)) == [200]
    assert (await served.call("GET", f"/jobs/{job['id']}/log")).json()["text"] == "half done"


async def test_an_upgrade_request_is_answered_after_earlier_requests(served: Served) -> None:
    valid = request_head(served, b"host: x", b"content-length: 16") + BODY
    upgrade = request_head(served, b"host: x", *UPGRADE, b"content-length: 16") + BODY
    assert statuses(await send_and_read(served, valid + upgrade + valid)) == [201, 201]
    assert await count_jobs(served) == 2


async def test_an_incomplete_body_of_an_upgrade_request_times_out(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_body, "BODY_PAUSE_SECONDS_MAX", 0.1)
    upgrade = request_head(served, b"host: x", *UPGRADE, b"content-length: 17")
    responses = await send_and_read(served, upgrade + BODY)
    assert statuses(responses) == [408], responses
    assert await count_jobs(served) == 0


async def test_the_body_of_an_upgrade_request_is_limited(served: Served) -> None:
    upgrade = request_head(served, b"host: x", *UPGRADE, b"content-length: 1000000000")
    assert statuses(await send_and_read(served, upgrade + BODY)) == [413]


async def test_a_chunked_upgrade_request_is_rejected(served: Served) -> None:
    upgrade = request_head(served, b"host: x", *UPGRADE, b"transfer-encoding: chunked")
    responses = await send_and_read(served, upgrade + b"10\r\n" + BODY + b"\r\n0\r\n\r\n")
    assert statuses(responses) == [400]
    assert b"Upgrade" in responses
    assert await count_jobs(served) == 0


async def test_trailers_are_not_taken_for_headers(served: Served) -> None:
    lines = [b"POST /api/v1/jobs HTTP/1.1", b"host: x", b"content-type: application/json", b"connection: close"]
    plain = b"\r\n".join([*lines, b"transfer-encoding: chunked", b"", b"10", BODY, b"0"])
    hidden = b"\r\nauthorization: Bearer " + served.operator.encode() + b"\r\n\r\n"
    assert statuses(await send_and_read(served, plain + hidden)) == [401]
    assert await count_jobs(served) == 0


@on_one_server(
    "lines",
    [
        b"x-long: " + b"a" * 100_000,
        b"\r\n".join(b"x-%d: a" % number for number in range(101)),
        b"\r\n".join(b"x-%d: " % number + b"a" * 900 for number in range(90)),
    ],
)
async def test_an_oversized_request_head_is_431(served: Served, lines: bytes) -> None:
    responses = await send_and_read(served, b"GET /healthz HTTP/1.1\r\n" + HOST + lines + b"\r\n\r\n")
    assert statuses(responses) == [431], responses[:200]


async def test_a_request_head_in_parts_has_the_same_limit(served: Served) -> None:
    line = b"GET /healthz HTTP/1.1\r\n" + HOST + b"x-long: " + b"a" * (protocol.HEAD_BYTES_MAX - 100)
    for end, status in ((b"\r\n", 200), (b"a" * 100 + b"\r\n", 431)):
        async with connected(served) as (reader, writer):
            for part in (line, end + b"connection: close\r\n", b"\r\n"):
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.02)
            assert statuses(await reader.read()) == [status]


async def test_an_oversized_path_is_431(served: Served) -> None:
    assert statuses(await send_and_read(served, b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n")) == [431]


@pytest.mark.parametrize("part", ["head", "extension", "trailer"])
async def test_an_endless_part_of_a_request_is_limited(served: Served, part: str) -> None:
    start = {
        "head": b"GET /healthz HTTP/1.1\r\nx-long: ",
        "extension": request_head(served, b"host: x", b"transfer-encoding: chunked") + b"10;",
        "trailer": request_head(served, b"host: x", b"transfer-encoding: chunked")
        + b"10\r\n"
        + BODY
        + b"\r\n0\r\nx-long: ",
    }[part]
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
    assert await count_jobs(served) == 0


# -- slow requests ------------------------------------------------------------------------------------------


async def test_an_incomplete_request_head_times_out(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS_MAX", 0.2)
    async with connected(served) as (reader, writer):
        answering = asyncio.create_task(reader.read())
        writer.write(b"GET /healthz HTTP/1.1\r\n" + HOST)
        while not answering.done():  # Single bytes do not extend the timeout.
            writer.write(b"x-a: b\r\n"[:1])
            await asyncio.sleep(0.01)
        responses = await answering
    assert statuses(responses) == [408]
    assert b'"code":"head_timeout"' in responses


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"\r\n\r\n"])
async def test_a_connection_without_a_request_is_closed(
    served: Served, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS_MAX", 0.1)
    assert await send_and_read(served, sent) == b""


async def test_an_unread_body_does_not_keep_the_connection_open(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS_MAX", 0.1)
    lines = b"POST /api/v1/jobs HTTP/1.1\r\n" + HOST + b"content-length: 1000\r\n\r\n{"
    assert statuses(await send_and_read(served, lines)) == [401]


async def test_a_client_that_waits_for_a_response_is_not_timed_out(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS_MAX", 0.05)
    body = b'{"types": ["noop"], "wait_seconds": 0.4}'
    claim = request_head(served, b"host: x", b"content-length: %d" % len(body), path=b"/api/v1/jobs/claim") + body
    half = b"GET /healthz HTTP/1.1\r\n"
    async with connected(served) as (reader, writer):
        writer.write(claim + half)
        assert statuses(await reader.readuntil(b"\r\n\r\n")) == [204]
        writer.write(HOST + b"\r\n")
        assert statuses(await reader.readuntil(b"\r\n\r\n")) == [200]


# -- pipelining and many connections ------------------------------------------------------------------------


async def test_pipelined_requests_are_answered_in_order(served: Served) -> None:
    requests = [b"GET /n/%d HTTP/1.1\r\n" % number + HOST + b"\r\n" for number in range(100)]
    last = b"GET /healthz HTTP/1.1\r\n" + HOST + b"connection: close\r\n\r\n"
    responses = await send_and_read(served, b"".join([*requests, last]))
    assert statuses(responses) == [404] * 100 + [200]
    offsets = [responses.index(b"has the path /n/%d" % number + b'"') for number in range(100)]
    assert offsets == sorted(offsets)


async def test_too_many_pipelined_requests_are_rejected(served: Served) -> None:
    requests = b"".join([b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"] * 1000)
    assert statuses(await send_and_read(served, requests)) == [200] * (protocol.PIPELINED_REQUESTS_MAX + 1) + [400]


async def test_requests_before_a_malformed_one_are_answered_first(served: Served) -> None:
    valid = request_head(served, b"host: x", b"content-length: 16") + BODY
    assert statuses(await send_and_read(served, valid + b"nonsense\r\n\r\n")) == [201, 400]
    bad_body = request_head(served, b"host: x", b"transfer-encoding: chunked") + b"nonsense\r\n"
    assert statuses(await send_and_read(served, valid + bad_body)) == [201, 400]
    assert await count_jobs(served) == 2


async def test_a_client_that_disconnects_after_pipelining_takes_no_job(served: Served) -> None:
    async with connected(served) as (_, writer):
        writer.write(waiting_claim(served) + b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n")
        await eventually(lambda: served.ingot.jobs.waiting_claims == 1)
    await eventually(lambda: served.ingot.jobs.waiting_claims == 0, seconds=DISCONNECT_SECONDS_MAX)
    job = await served.make_job()
    assert (await served.claim())["id"] == job["id"]


async def test_a_client_that_pipelines_while_it_waits_and_disconnects_takes_no_job(served: Served) -> None:
    async with connected(served) as (_, writer):
        writer.write(waiting_claim(served))
        await eventually(lambda: served.ingot.jobs.waiting_claims == 1)
        for count in (1, 2):
            writer.write(b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n")
            await eventually(partial(is_pipelined, served, count))
    await eventually(lambda: served.ingot.jobs.waiting_claims == 0, seconds=DISCONNECT_SECONDS_MAX)
    job = await served.make_job()
    assert (await served.claim())["id"] == job["id"]


async def test_pipelined_bytes_are_limited(served: Served) -> None:
    request = b"GET /healthz HTTP/1.1\r\n" + HOST + b"x-long: " + b"a" * 30_000 + b"\r\n\r\n"
    async with connected(served) as (reader, writer):
        writer.write(waiting_claim(served))
        await eventually(lambda: served.ingot.jobs.waiting_claims == 1)
        for count in (1, 2, 3, 4):
            writer.write(request)
            await eventually(partial(is_pipelined, served, count))
        (connection,) = (each for each in open_connections(served) if each.pipeline)
        assert connection.flow.read_paused
        writer.write(request)
        await served.make_job()
        for status in [200] * 6:
            response = await reader.readuntil(b"\r\n\r\n")
            assert statuses(response) == [status]
            await reader.readexactly(int(re.findall(rb"content-length: (\d+)", response)[0]))


async def test_a_body_after_expect_100_continue_is_read(served: Served) -> None:
    async with connected(served) as (reader, writer):
        writer.write(request_head(served, b"host: x", b"content-length: 16", b"expect: 100-continue"))
        assert statuses(await reader.readuntil(b"\r\n\r\n")) == [100]
        writer.write(BODY)
        assert statuses(await reader.readuntil(b"\r\n\r\n")) == [201]
    unauthorized = b"POST /api/v1/jobs HTTP/1.1\r\n" + HOST + b"content-length: 16\r\nexpect: 100-continue\r\n\r\n"
    async with connected(served) as (reader, writer):
        writer.write(unauthorized)
        assert statuses(await reader.readuntil(b"\r\n\r\n")) == [401]


async def test_connections_above_the_limit_are_rejected(tmp_path: Path) -> None:
    async with serving(tmp_path, Settings(connections_max=20)) as served:
        host, port = served.url.removeprefix("http://").split(":")
        connections = [await asyncio.open_connection(host, int(port)) for _ in range(20)]
        for reader, writer in connections:
            writer.write(b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n")
            assert statuses(await reader.readuntil(b"\r\n\r\n")) == [200]
        for _ in range(protocol.LINGERING_CONNECTIONS_MAX):
            responses = await send_and_read(served, b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n")
            assert statuses(responses) == [503]
            assert b"retry-after: 5" in responses
        connections[0][1].close()
        await connections[0][1].wait_closed()
        await eventually(lambda: len(served.server.server_state.connections) < 20)
        assert (await served.client.get("/healthz")).status_code == 200
        for _, writer in connections:
            writer.close()
