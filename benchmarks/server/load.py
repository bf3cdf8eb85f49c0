"""The process that creates load: many connections, each of which sends its next request after a response."""

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
    """The requests to send, over how many connections, and for how long."""

    port: int
    token: str
    what: str
    connections: int = 32
    seconds: float = 5.0
    jobs: int = 0


class LoadResult(msgspec.Struct, frozen=True):
    """The rate and latencies of a load."""

    per_second: float
    p50_ms: float = 0.0
    p99_ms: float = 0.0


class UnexpectedResponse(Exception):
    """A response is not the expected one."""


def encode_request(load: LoadRequest, method: str, path: str, body: bytes = b"") -> bytes:
    """Return the bytes of an HTTP request."""
    lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", f"authorization: Bearer {load.token}"]
    if body:
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


class ResponseMeter:
    """Records response times while `counting` is true."""

    def __init__(self) -> None:
        self.counting = False
        self.running = True
        self.seconds: list[float] = []
        self.error: Exception | None = None

    async def count(self, seconds: float) -> float:
        """Wait for the warm-up, count for some seconds, and end the load. Return the exact time."""
        await asyncio.sleep(WARM_SECONDS)
        self.counting = True
        began = time.perf_counter()
        await asyncio.sleep(seconds)
        self.counting = False
        counted_seconds = time.perf_counter() - began
        self.running = False
        return counted_seconds

    def result(self, seconds: float) -> LoadResult:
        """Return the rate and the percentiles."""
        if self.error is not None:
            raise self.error
        percentiles = statistics.quantiles(self.seconds, n=100, method="inclusive")
        return LoadResult(len(self.seconds) / seconds, percentiles[49] * 1000, percentiles[98] * 1000)


class LoadConnection(asyncio.Protocol):
    """A connection that sends the same request again after each response."""

    def __init__(self, request: bytes, meter: ResponseMeter) -> None:
        self._request = request
        self._meter = meter
        self._response = b""
        self._began = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def _send(self) -> None:
        self._began = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._response += data
        size = size_of(self._response)
        if size is None or len(self._response) < size:
            return
        meter = self._meter
        if not self._response.startswith(b"HTTP/1.1 20"):
            meter.error = UnexpectedResponse(self._response[:500].decode(errors="replace"))
            meter.running = False
        if meter.counting:
            meter.seconds.append(time.perf_counter() - self._began)
        self._response = b""
        if meter.running:
            self._send()
        else:
            self._transport.close()


def size_of(response: bytes) -> int | None:
    """Return the size of the whole response, or `None` until its head is complete."""
    end = response.find(b"\r\n\r\n")
    if end < 0:
        return None
    header = response.find(b"content-length: ", 0, end)
    if header < 0:
        raise UnexpectedResponse(response[:200].decode(errors="replace"))
    return end + 4 + int(response[header + 16 : response.find(b"\r\n", header)])


async def repeat(load: LoadRequest, request: bytes) -> LoadResult:
    """Send the same request repeatedly on each connection."""
    loop = asyncio.get_running_loop()
    meter = ResponseMeter()
    for _ in range(load.connections):
        await loop.create_connection(lambda: LoadConnection(request, meter), "127.0.0.1", load.port)
    seconds = await meter.count(load.seconds)
    await asyncio.sleep(0.2)
    return meter.result(seconds)


class Connection:
    """A connection for different requests."""

    def __init__(self, load: LoadRequest) -> None:
        self._load = load

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._load.port, limit=2**24)

    async def send(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Send a request and return the body of the response."""
        self._writer.write(encode_request(self._load, method, path, body))
        head = await self._reader.readuntil(b"\r\n\r\n")
        size = size_of(head)
        assert size is not None
        content = await self._reader.readexactly(size - len(head))
        if not head.startswith(b"HTTP/1.1 20"):
            raise UnexpectedResponse(content.decode())
        return content


class ClaimedJob(msgspec.Struct):
    """The fields of a claimed job that are used here."""

    id: str
    fence: int


class ClaimResponse(msgspec.Struct):
    """The response to a claim."""

    jobs: list[ClaimedJob]


async def fill(load: LoadRequest) -> None:
    """Enqueue the jobs to claim."""
    connection = Connection(load)
    await connection.open()
    jobs = [{"type": "noop", "payload": payload(number)} for number in range(load.jobs)]
    for start in range(0, load.jobs, 1000):
        await connection.send("POST", "/api/v1/jobs/batch", msgspec.json.encode({"jobs": jobs[start : start + 1000]}))


async def work(load: LoadRequest) -> LoadResult:
    """Claim and settle batches until no job is left."""
    await fill(load)
    settled_jobs = 0

    async def call() -> None:
        nonlocal settled_jobs
        connection = Connection(load)
        await connection.open()
        claim = msgspec.json.encode({"worker_id": "w", "types": ["noop"], "limit": 100})
        while content := await connection.send("POST", "/api/v1/jobs/claim", claim):
            jobs = msgspec.json.decode(content, type=ClaimResponse).jobs
            settles = [{"id": job.id, "fence": job.fence, "outcome": "succeeded"} for job in jobs]
            await connection.send("POST", "/api/v1/jobs/settle", msgspec.json.encode({"jobs": settles}))
            settled_jobs += len(jobs)

    began = time.perf_counter()
    await asyncio.gather(*[call() for _ in range(load.connections)])
    if settled_jobs != load.jobs:
        raise UnexpectedResponse(f"{load.jobs} jobs were enqueued, but {settled_jobs} were settled")
    return LoadResult(settled_jobs / (time.perf_counter() - began))


async def tick(load: LoadRequest) -> LoadResult:
    """Publish single events at a steady rate."""
    connection = Connection(load)
    await connection.open()
    body = msgspec.json.encode({"name": "bench.tick", "data": payload(0)})
    loop = asyncio.get_running_loop()
    began = loop.time()
    for number in range(load.jobs):
        await asyncio.sleep(max(0.0, began + number * load.seconds / load.jobs - loop.time()))
        await connection.send("POST", "/api/v1/events", body)
    return LoadResult(load.jobs / (loop.time() - began))


async def measure(load: LoadRequest) -> LoadResult:
    """Create the requested load."""
    if load.what == "noop":
        return await repeat(load, encode_request(load, "GET", "/noop"))
    if load.what == "post":
        body = msgspec.json.encode({"type": "noop", "payload": payload(0)})
        return await repeat(load, encode_request(load, "POST", "/api/v1/jobs", body))
    if load.what == "tick":
        return await tick(load)
    return await work(load)


if __name__ == "__main__":
    uvloop: Any = component("uvloop")
    print(msgspec.json.encode(uvloop.run(measure(msgspec.json.decode(sys.argv[1], type=LoadRequest)))).decode())
