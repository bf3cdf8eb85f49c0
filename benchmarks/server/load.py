"""The process that asks: many connections, each sending the next request when the last was answered."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from typing import Any, Final, cast

import msgspec

from benchmarks.queue.adapter import component, payload

WARM_SECONDS: Final = 1.0


class LoadRequest(msgspec.Struct, frozen=True):
    """What to ask, how, and for how long."""

    port: int
    token: str
    what: str
    connections: int = 32
    seconds: float = 5.0
    jobs: int = 0


class LoadResult(msgspec.Struct, frozen=True):
    """What came of it."""

    per_second: float
    p50_ms: float = 0.0
    p99_ms: float = 0.0


class UnexpectedResponse(Exception):
    """An answer that was not expected."""


def request(order: LoadRequest, method: str, path: str, body: bytes = b"") -> bytes:
    """A request as it goes over the wire."""
    lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", f"authorization: Bearer {order.token}"]
    if body:
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


class ResponseMeter:
    """When requests were answered, while it counts."""

    def __init__(self) -> None:
        self.counting = False
        self.running = True
        self.seconds: list[float] = []
        self.broken: Exception | None = None

    async def count(self, seconds: float) -> float:
        """Let them warm up, count for so long, and have them end; answers how long it was."""
        await asyncio.sleep(WARM_SECONDS)
        self.counting = True
        began = time.perf_counter()
        await asyncio.sleep(seconds)
        self.counting = False
        over = time.perf_counter() - began
        self.running = False
        return over

    def figures(self, over: float) -> LoadResult:
        """The rate and the percentiles."""
        if self.broken is not None:
            raise self.broken
        cuts = statistics.quantiles(self.seconds, n=100, method="inclusive")
        return LoadResult(len(self.seconds) / over, cuts[49] * 1000, cuts[98] * 1000)


class LoadConnection(asyncio.Protocol):
    """One connection: the same request over and over."""

    def __init__(self, text: bytes, meter: ResponseMeter) -> None:
        self._text = text
        self._meter = meter
        self._answer = b""
        self._began = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def _ask(self) -> None:
        self._began = time.perf_counter()
        self._transport.write(self._text)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        size = size_of(self._answer)
        if size is None or len(self._answer) < size:
            return
        meter = self._meter
        if not self._answer.startswith(b"HTTP/1.1 20"):
            meter.broken = UnexpectedResponse(self._answer[:500].decode(errors="replace"))
            meter.running = False
        if meter.counting:
            meter.seconds.append(time.perf_counter() - self._began)
        self._answer = b""
        if meter.running:
            self._ask()
        else:
            self._transport.close()


def size_of(answer: bytes) -> int | None:
    """How long a whole answer is, once its head is there."""
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        return None
    at = answer.find(b"content-length: ", 0, end)
    if at < 0:
        raise UnexpectedResponse(answer[:200].decode(errors="replace"))
    return end + 4 + int(answer[at + 16 : answer.find(b"\r\n", at)])


async def repeat(order: LoadRequest, text: bytes) -> LoadResult:
    """Send one request again and again on each connection."""
    loop = asyncio.get_running_loop()
    meter = ResponseMeter()
    for _ in range(order.connections):
        await loop.create_connection(lambda: LoadConnection(text, meter), "127.0.0.1", order.port)
    over = await meter.count(order.seconds)
    await asyncio.sleep(0.2)
    return meter.figures(over)


class Connection:
    """One connection for requests that differ."""

    def __init__(self, order: LoadRequest) -> None:
        self._order = order

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._order.port, limit=2**24)

    async def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The body of an answer."""
        self._writer.write(request(self._order, method, path, body))
        head = await self._reader.readuntil(b"\r\n\r\n")
        size = size_of(head)
        assert size is not None
        content = await self._reader.readexactly(size - len(head))
        if not head.startswith(b"HTTP/1.1 20"):
            raise UnexpectedResponse(content.decode())
        return content


class ClaimedJob(msgspec.Struct):
    """What matters of a job that was claimed."""

    id: str
    fence: int


class ClaimResponse(msgspec.Struct):
    """What matters of a claim."""

    jobs: list[ClaimedJob]


async def fill(order: LoadRequest) -> None:
    """Enqueue the jobs that are to be claimed."""
    connection = Connection(order)
    await connection.open()
    jobs = [{"type": "noop", "payload": payload(number)} for number in range(order.jobs)]
    for at in range(0, order.jobs, 1000):
        await connection.ask("POST", "/api/v1/jobs/batch", msgspec.json.encode({"jobs": jobs[at : at + 1000]}))


async def work(order: LoadRequest) -> LoadResult:
    """Claim and settle batches until there are no more."""
    await fill(order)
    done = [0]

    async def one() -> None:
        connection = Connection(order)
        await connection.open()
        ask = msgspec.json.encode({"worker_id": "w", "types": ["noop"], "limit": 100})
        while content := await connection.ask("POST", "/api/v1/jobs/claim", ask):
            jobs = msgspec.json.decode(content, type=ClaimResponse).jobs
            settles = [{"id": job.id, "fence": job.fence, "outcome": "succeeded"} for job in jobs]
            await connection.ask("POST", "/api/v1/jobs/settle", msgspec.json.encode({"jobs": settles}))
            done[0] += len(jobs)

    began = time.perf_counter()
    await asyncio.gather(*[one() for _ in range(order.connections)])
    if done[0] != order.jobs:
        raise UnexpectedResponse(f"{order.jobs} jobs were enqueued, {done[0]} were settled")
    return LoadResult(done[0] / (time.perf_counter() - began))


async def tick(order: LoadRequest) -> LoadResult:
    """Publish events at a steady rate, one after the other."""
    connection = Connection(order)
    await connection.open()
    body = msgspec.json.encode({"name": "bench.tick", "data": payload(0)})
    loop = asyncio.get_running_loop()
    began = loop.time()
    for number in range(order.jobs):
        await asyncio.sleep(max(0.0, began + number * order.seconds / order.jobs - loop.time()))
        await connection.ask("POST", "/api/v1/events", body)
    return LoadResult(order.jobs / (loop.time() - began))


async def measure(order: LoadRequest) -> LoadResult:
    """What was ordered."""
    if order.what == "noop":
        return await repeat(order, request(order, "GET", "/noop"))
    if order.what == "post":
        body = msgspec.json.encode({"type": "noop", "payload": payload(0)})
        return await repeat(order, request(order, "POST", "/api/v1/jobs", body))
    if order.what == "tick":
        return await tick(order)
    return await work(order)


if __name__ == "__main__":
    uvloop: Any = component("uvloop")
    print(msgspec.json.encode(uvloop.run(measure(msgspec.json.decode(sys.argv[1], type=LoadRequest)))).decode())
