"""Large requests and responses in memory: no tenant can use up the memory of the server, or keep others from theirs."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from ingot.http import buffers, json_body
from ingot.http.buffers import Buffers, BuffersFull, Reservation, TooManyBytes
from ingot.http.problems import BodyTooLarge
from ingot.settings import Settings
from tests.http.raw_connections import connected, send_and_read, statuses
from tests.http.serving import Served, serving
from tests.system.programs import served as served_process
from tests.waiting import eventually

MIB = 1024 * 1024
TOTAL = 16 * MIB
CALLER, TENANT = int(TOTAL * buffers.CALLER_SHARE_MAX), int(TOTAL * buffers.TENANT_SHARE_MAX)
BATCH = b"/api/v1/jobs/batch"
GROWTH_BYTES_MAX = 320 * MIB


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, Settings(buffered_bytes_max=TOTAL)) as served:
        yield served


def batch_head(token: str, *lines: bytes, path: bytes = BATCH) -> bytes:
    head = [b"POST " + path + b" HTTP/1.1", b"host: x", b"authorization: Bearer " + token.encode()]
    return b"\r\n".join([*head, b"content-type: application/json", *lines, b"", b""])


def declared(token: str, size: int) -> bytes:
    return batch_head(token, b"content-length: %d" % size)


async def hold(stack: AsyncExitStack, served: Served, token: str, size: int) -> asyncio.StreamWriter:
    """Announce a body of this size, send a bit of it, and stop."""
    used_before = await used(served)
    _, writer = await stack.enter_async_context(connected(served))
    writer.write(declared(token, size) + b'{"jobs": [')
    await _until_used(served, used_before + size)
    return writer


async def metric(served: Served, name: str) -> int:
    text = (await served.client.get("/metrics", headers={"authorization": f"Bearer {served.operator}"})).text
    match = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert match is not None, name
    return round(float(match[1]))


async def used(served: Served) -> int:
    return await metric(served, "ingot_http_buffered_bytes")


async def _until_used(served: Served, size: int) -> None:
    async def is_used() -> bool:
        return await used(served) == size

    await eventually(is_used)


def code_of(response: bytes) -> str:
    match = re.search(rb'"code":"([a-z_]+)"', response)
    return "" if match is None else match[1].decode()


# -- bodies ---------------------------------------------------------------------------------------------------


async def test_one_caller_cannot_hold_more_than_its_share(small: Served) -> None:
    token, other = await small.token(), await small.token()
    async with AsyncExitStack() as stack:
        await hold(stack, small, token, CALLER - MIB)
        refused = await send_and_read(small, declared(token, 2 * MIB))  # Without a byte of the body.
        assert (statuses(refused), code_of(refused)) == ([429], "too_many_bytes")
        assert b"retry-after: 2" in refused
        assert (await small.call("POST", "/jobs", token=token, json={"type": "small"})).status_code == 201
        await hold(stack, small, other, 2 * MIB)
    await _until_used(small, 0)
    assert await metric(small, 'ingot_http_buffer_refusals_total{limit="caller"}') == 1


async def test_the_callers_of_one_tenant_leave_room_for_others(small: Served) -> None:
    tokens = [await small.token() for _ in range(3)]
    tenant = await small.ingot.tenants.create("other")
    other = await small.token(tenant=tenant.id)
    async with AsyncExitStack() as stack:
        for token in tokens[:2]:
            await hold(stack, small, token, CALLER)
        refused = await send_and_read(small, declared(tokens[2], MIB))
        assert (statuses(refused), code_of(refused)) == ([429], "too_many_bytes")
        jobs = [{"type": "noop", "payload": "x" * 50_000} for _ in range(20)]
        response = await small.call("POST", "/jobs/batch", token=other, json={"jobs": jobs})
        assert response.status_code == 201
    await _until_used(small, 0)


async def test_a_full_server_refuses_large_bodies_and_serves_small_ones(small: Served) -> None:
    tenants = [await small.ingot.tenants.create(slug) for slug in ("one", "two", "three")]
    tokens = [await small.token(tenant=tenants[n // 2].id) for n in range(5)]
    async with AsyncExitStack() as stack:
        for token in tokens[:4]:
            await hold(stack, small, token, CALLER)
        refused = await send_and_read(small, declared(tokens[4], MIB))
        assert (statuses(refused), code_of(refused)) == ([503], "buffers_full")
        assert b"retry-after: 2" in refused
        assert (await small.call("POST", "/jobs", token=tokens[4], json={"type": "small"})).status_code == 201


async def test_a_body_that_never_fits_is_refused_without_reading_it(small: Served) -> None:
    refused = await send_and_read(small, declared(await small.token(), CALLER + 1))
    assert (statuses(refused), code_of(refused)) == ([413], "body_too_large")
    assert b"INGOT_BUFFERED_BYTES_MAX" in refused
    assert await used(small) == 0


async def test_chunks_are_counted_as_they_arrive(small: Served) -> None:
    token = await small.token()
    chunk = b"%x\r\n%s\r\n" % (MIB, b" " * MIB)
    async with AsyncExitStack() as stack:
        await hold(stack, small, token, CALLER - 2 * MIB)
        reader, writer = await stack.enter_async_context(connected(small))
        writer.write(batch_head(token, b"transfer-encoding: chunked") + chunk)
        await _until_used(small, CALLER - MIB)
        writer.write(chunk * 2)
        refused = await reader.read()
        assert (statuses(refused), code_of(refused)) == ([429], "too_many_bytes")
        await _until_used(small, CALLER - 2 * MIB)


async def test_a_body_is_not_read_without_a_valid_credential(small: Served) -> None:
    refused = await send_and_read(small, declared("ingot_nonsense", CALLER))
    assert statuses(refused) == [401]
    assert await used(small) == 0


@pytest.mark.parametrize("sends_bytes", [False, True])
async def test_a_slow_body_ends_early(small: Served, monkeypatch: pytest.MonkeyPatch, sends_bytes: bool) -> None:
    monkeypatch.setattr(json_body, "BODY_PAUSE_SECONDS_MAX", 0.5)
    async with connected(small) as (reader, writer):
        writer.write(declared(await small.token(), CALLER))
        reading = asyncio.create_task(reader.read())
        while sends_bytes and not reading.done():
            writer.write(b" ")
            await asyncio.sleep(0.05)
        response = await reading
    assert (statuses(response), code_of(response)) == ([408], "request_timeout")
    assert (b"no bytes of the body" in response) is not sends_bytes
    await _until_used(small, 0)


async def test_incomplete_bodies_cannot_hold_all_connections(tmp_path: Path) -> None:
    async with serving(tmp_path, Settings(connections_max=6)) as served, AsyncExitStack() as stack:
        token = await served.token()
        for _ in range(3):
            _, writer = await stack.enter_async_context(connected(served))
            writer.write(declared(token, 100) + b"{")

        async def is_refused() -> bool:
            response = await served.call("POST", "/jobs/claim", token=token, json={"types": ["noop"]})
            return response.status_code == 429

        await eventually(is_refused)
        response = await send_and_read(served, declared(token, 100) + b"{")
        assert (statuses(response), code_of(response)) == ([429], "too_many_waiting")


@pytest.mark.curl
async def test_bodies_that_stop_do_not_grow_the_server(tmp_path: Path) -> None:
    with served_process(tmp_path) as (process, url):
        token = (tmp_path / "operator.token").read_text().strip()
        host, port = url.removeprefix("http://").split(":")
        before = _peak_memory(process.pid)
        body = b'{"jobs": [' + b" " * (62 * MIB)

        async def send(writers: list[asyncio.StreamWriter]) -> int:
            reader, writer = await asyncio.open_connection(host, int(port))
            writers.append(writer)
            writer.write(declared(token, len(body) + 1))
            sending = asyncio.create_task(_send(writer, body))
            response = asyncio.create_task(reader.read(12))
            await asyncio.wait([sending, response], return_when=asyncio.FIRST_COMPLETED)
            return 0 if not response.done() else int(response.result()[9:])

        writers: list[asyncio.StreamWriter] = []
        results = await asyncio.gather(*(send(writers) for _ in range(16)))
        grown = _peak_memory(process.pid) - before
        for writer in writers:
            writer.transport.abort()
        assert sorted(results) == [0, 0] + [429] * 14
        assert grown <= GROWTH_BYTES_MAX, f"{grown / MIB:.0f} MiB"


async def _send(writer: asyncio.StreamWriter, body: bytes) -> None:
    for start in range(0, len(body), MIB):
        writer.write(body[start : start + MIB])
        await writer.drain()


def _peak_memory(pid: int) -> int:
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


# -- responses ------------------------------------------------------------------------------------------------


async def test_a_response_that_is_not_read_counts_until_it_is(small: Served) -> None:
    token = await small.token()
    for _ in range(60):
        event = {"name": "order.paid", "data": "x" * 60_000}
        assert (await small.call("POST", "/events", json=event)).status_code == 201
    page = b"GET /api/v1/events?limit=%d HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %s\r\n\r\n"
    host, port = small.url.removeprefix("http://").split(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # The kernel would otherwise take all of it.
        client.connect((host, int(port)))
        client.sendall(page % (60, token.encode()))
        size = await eventually(lambda: used(small))
        assert 3_000_000 < size <= CALLER
        refused = await small.call("GET", "/events?limit=60", token=token)
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_bytes")
        assert (await small.call("GET", "/events?limit=1", token=token)).status_code == 200
        client.setblocking(False)
        received = 0
        while received < size:
            received += len(await asyncio.get_running_loop().sock_recv(client, MIB))
        await _until_used(small, 0)


async def test_the_response_to_a_change_is_never_refused(small: Served) -> None:
    token = await small.token()
    payload = "x" * 60_000
    for _ in range(60):
        await small.call("POST", "/jobs", json={"type": "noop", "payload": payload})
    async with AsyncExitStack() as stack:
        await hold(stack, small, token, CALLER - MIB)
        claimed = await small.call(
            "POST", "/jobs/claim", token=token, json={"types": ["noop"], "worker_id": "w", "limit": 50}
        )
        assert claimed.status_code == 200
        assert len(claimed.content) > 2 * MIB


# -- the numbers ----------------------------------------------------------------------------------------------


def test_a_reservation_counts_up_to_each_limit_and_returns_everything() -> None:
    counted = Buffers(1000)
    one, two, three = (Reservation(counted, caller, "a") for caller in ("one", "two", "three"))
    one.add(250)
    with pytest.raises(BodyTooLarge):
        one.add(1)
    with pytest.raises(TooManyBytes):
        Reservation(counted, "one", "b").add(1)
    two.add(250)
    with pytest.raises(TooManyBytes):
        three.add(1)
    others = [Reservation(counted, f"{n}", "b") for n in range(2)]
    for other in others:
        other.add(250)
    with pytest.raises(BuffersFull):
        Reservation(counted, "last", "c").add(1)
    three.add_anyway(10)
    assert counted.used_bytes == 1010
    two.release(100)
    for each in (one, two, three, *others):
        each.release()
    assert counted.used_bytes == 0
    Reservation(counted, "one", "a").add(250)
