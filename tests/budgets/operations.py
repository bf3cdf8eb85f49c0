"""The operations that have budgets, and measuring their cost with a real server."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx
import msgspec

from ingot.http.routes import PREFIX
from ingot.kernel.clock import ManualClock
from ingot.settings import Settings
from tests.budgets.calls import Calls, counted_calls
from tests.budgets.postgres_proxy import open_proxy
from tests.engines.sqlite.plans.meter import metered
from tests.http.serving import Served, serving

WARM_ROUNDS: Final = 8  # PostgreSQL may switch to a generic plan after five executions.
ROUNDS: Final = 7
MANY: Final = 100
BLOB: Final = bytes(range(256)) * 16
IDLE_CHECKS: Final = 3
POLL_SECONDS: Final = 0.002
# Time between two requests. The sum is shorter than the age of cached values in the server.
STEP_SECONDS: Final = 0.001

Cost = dict[str, float]
Meters = Callable[[], Awaitable[dict[str, int]]]


class Measured(msgspec.Struct):
    """The cost of an operation, and how often it calls each function."""

    cost: Cost
    functions: Counter[str]


class Sender:
    """Sends requests over one connection, each with one write, so that the server always reads it whole."""

    def __init__(self, served: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._served = served
        self._reader = reader
        self._writer = writer

    async def send(self, method: str, path: str, content: bytes) -> Any:
        """Send a request, and return the decoded body of the response."""
        head = (
            f"{method} {PREFIX}{path} HTTP/1.1\r\nhost: ingot\r\nauthorization: Bearer {self._served.operator}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        )
        self._writer.write(head.encode() + content)
        status, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines if line)
        body = await self._reader.readexactly(int(headers["content-length"]))
        assert status.split()[1] in ("200", "201"), body
        return msgspec.json.decode(body)


class CostRecorder:
    """Runs operations and records the cost of each run."""

    def __init__(self, sender: Sender, clock: ManualClock, calls: Calls, meters: Meters) -> None:
        self._sender = sender
        self._clock = clock
        self._calls = calls
        self._meters = meters
        self._runs: defaultdict[str, list[Measured]] = defaultdict(list)

    async def send(self, method: str, path: str, content: object) -> Any:
        """Send a request without measuring it, and wait until the server is idle again."""
        response = await self._sender.send(method, path, _encoded(content))
        await self._until_idle()
        return response

    async def run(self, operation: str, method: str, path: str, content: object) -> Any:
        """Send a request, and record its cost until the server is idle again."""
        self._clock.advance(seconds=STEP_SECONDS)
        before, first = await self._meters(), len(self._calls)
        response = await self.send(method, path, content)
        functions = self._calls.since(first)
        after = await self._meters()
        cost: Cost = {"calls": functions.total()}
        cost |= {name: after[name] - before[name] for name in after}
        self._runs[operation].append(Measured(cost, functions))
        return response

    async def _until_idle(self) -> None:
        """Wait until the server is idle, because some work follows the response on other threads."""
        unchanged, calls = 0, -1
        while unchanged < IDLE_CHECKS:
            unchanged, calls = (unchanged + 1, calls) if len(self._calls) == calls else (0, len(self._calls))
            await asyncio.sleep(POLL_SECONDS)

    def medians(self) -> dict[str, Measured]:
        """The median cost of each operation, which a timer that fires in one run does not change."""
        return {operation: _median(runs[WARM_ROUNDS:]) for operation, runs in self._runs.items()}


def _encoded(content: object) -> bytes:
    return content if isinstance(content, bytes) else msgspec.json.encode(content)


def _median(runs: list[Measured]) -> Measured:
    cost = {name: median(run.cost[name] for run in runs) for name in runs[0].cost}
    return Measured(cost, next(run.functions for run in runs if run.cost["calls"] == cost["calls"]))


async def measure(engine: str, folder: Path) -> dict[str, Measured]:
    """The cost of each operation on this engine."""
    clock = ManualClock()
    with counted_calls() as calls:
        async with _served(engine, folder, clock) as (served, meters):
            url = httpx.URL(served.url)
            reader, writer = await asyncio.open_connection(url.host, url.port)
            recorder = CostRecorder(Sender(served, reader, writer), clock, calls, meters)
            for number in range(WARM_ROUNDS + ROUNDS):
                await _run_round(recorder, number)
            writer.close()
            return recorder.medians()


@asynccontextmanager
async def _served(engine: str, folder: Path, clock: ManualClock) -> AsyncIterator[tuple[Served, Meters]]:
    """A server on this engine, without maintenance, and the meters of its database.

    It uses the manual clock, so that no cached value expires on a slow machine.
    """
    if engine == "sqlite":
        with metered() as meter:

            async def count_steps() -> dict[str, int]:
                return {"statements": meter.statements, "steps": meter.total_steps}

            async with serving(folder, clock=clock, maintenance=False) as served:
                yield served, count_steps
        return
    async with open_proxy(clock) as proxy:

        async def count_buffers() -> dict[str, int]:
            return {"statements": proxy.statements, "buffers": await proxy.buffers()}

        async with serving(folder, Settings(database_url=proxy.url), clock=clock, maintenance=False) as served:
            yield served, count_buffers


async def _run_round(recorder: CostRecorder, number: int) -> None:
    """Run every operation once. The queue is empty before and after."""
    job = {"type": "one", "payload": {"page": 1}}
    claim = {"worker_id": "worker", "types": ["one"], "limit": 1}
    await recorder.run("POST /jobs", "POST", "/jobs", job)
    (claimed,) = (await recorder.run("claim one", "POST", "/jobs/claim", claim))["jobs"]
    heartbeat = {"fence": claimed["fence"], "progress": {"percent": 50}}
    await recorder.run("heartbeat", "POST", f"/jobs/{claimed['id']}/heartbeat", heartbeat)
    await recorder.run("settle", "POST", "/jobs/settle", {"jobs": [_success(claimed)]})

    await recorder.send("POST", "/jobs/batch", {"jobs": [job | {"type": "many"}] * MANY})
    claim = {"worker_id": "worker", "types": ["many"], "limit": MANY}
    all_claimed = (await recorder.run("claim 100", "POST", "/jobs/claim", claim))["jobs"]
    assert len(all_claimed) == MANY
    await recorder.send("POST", "/jobs/settle", {"jobs": [_success(each) for each in all_claimed]})

    await recorder.run("PUT key", "PUT", f"/keys/small/{number}", BLOB + number.to_bytes(2, "big"))


def _success(claimed: dict[str, Any]) -> dict[str, object]:
    return {"outcome": "succeeded", "id": claimed["id"], "fence": claimed["fence"], "result": {"pages": 1}}
