"""The operations that have budgets, sent to a real server, and what each costs."""

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
from tests.budgets.postgres_proxy import open_wire
from tests.engines.sqlite.plans.meter import metered
from tests.http.serving import Served, serving

WARM_ROUNDS: Final = 8  # PostgreSQL plans a statement with its values five times, and then maybe without them.
ROUNDS: Final = 7
MANY: Final = 100
BLOB: Final = bytes(range(256)) * 16
QUIET_LOOKS: Final = 3
POLL_SECONDS: Final = 0.002
# Between two requests. All of them together take less than what the server remembers for some seconds.
STEP_SECONDS: Final = 0.001

Cost = dict[str, float]
Meters = Callable[[], Awaitable[dict[str, int]]]


class Measured(msgspec.Struct):
    """What an operation costs, and which functions it calls how often."""

    cost: Cost
    functions: Counter[str]


class Sender:
    """Sends requests over one connection, each with one write, so that the server always reads it whole."""

    def __init__(self, served: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._served = served
        self._reader = reader
        self._writer = writer

    async def send(self, method: str, path: str, content: bytes) -> Any:
        """The body of the response, decoded."""
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


class Measuring:
    """Runs operations and notes the cost of each run."""

    def __init__(self, sender: Sender, clock: ManualClock, calls: Calls, meters: Meters) -> None:
        self._sender = sender
        self._clock = clock
        self._calls = calls
        self._meters = meters
        self._runs: defaultdict[str, list[Measured]] = defaultdict(list)

    async def send(self, method: str, path: str, content: object) -> Any:
        """Send a request without measuring it, and wait until the server is idle again."""
        response = await self._sender.send(method, path, _encoded(content))
        await self._until_quiet()
        return response

    async def run(self, operation: str, method: str, path: str, content: object) -> Any:
        """Send a request, and note what it costs the server until it is idle again."""
        self._clock.advance(seconds=STEP_SECONDS)
        before, first = await self._meters(), len(self._calls)
        response = await self.send(method, path, content)
        functions = self._calls.since(first)
        after = await self._meters()
        cost: Cost = {"calls": functions.total()}
        cost |= {name: after[name] - before[name] for name in after}
        self._runs[operation].append(Measured(cost, functions))
        return response

    async def _until_quiet(self) -> None:
        """Wait until the server does nothing any more: some work follows the response, on other threads."""
        looks, seen = 0, -1
        while looks < QUIET_LOOKS:
            looks, seen = (looks + 1, seen) if len(self._calls) == seen else (0, len(self._calls))
            await asyncio.sleep(POLL_SECONDS)

    def medians(self) -> dict[str, Measured]:
        """The cost of each operation in the middle of its runs, so that a timer that fires in one changes nothing."""
        return {operation: _median(runs[WARM_ROUNDS:]) for operation, runs in self._runs.items()}


def _encoded(content: object) -> bytes:
    return content if isinstance(content, bytes) else msgspec.json.encode(content)


def _median(runs: list[Measured]) -> Measured:
    cost = {name: median(run.cost[name] for run in runs) for name in runs[0].cost}
    return Measured(cost, next(run.functions for run in runs if run.cost["calls"] == cost["calls"]))


async def measure(engine: str, folder: Path) -> dict[str, Measured]:
    """What each operation costs on this engine."""
    clock = ManualClock()
    with counted_calls() as calls:
        async with _served(engine, folder, clock) as (served, meters):
            url = httpx.URL(served.url)
            reader, writer = await asyncio.open_connection(url.host, url.port)
            measuring = Measuring(Sender(served, reader, writer), clock, calls, meters)
            for number in range(WARM_ROUNDS + ROUNDS):
                await _run_round(measuring, number)
            writer.close()
            return measuring.medians()


@asynccontextmanager
async def _served(engine: str, folder: Path, clock: ManualClock) -> AsyncIterator[tuple[Served, Meters]]:
    """A server on this engine, without maintenance, and the meters of its database.

    It has the time of the clock, so that on a slow machine nothing expires that the server remembers for some seconds.
    """
    if engine == "sqlite":
        with metered() as meter:

            async def count_steps() -> dict[str, int]:
                return {"statements": meter.statements, "steps": meter.total_steps}

            async with serving(folder, clock=clock, maintenance=False) as served:
                yield served, count_steps
        return
    async with open_wire(clock) as wire:

        async def count_buffers() -> dict[str, int]:
            return {"statements": wire.statements, "buffers": await wire.buffers()}

        async with serving(folder, Settings(database_url=wire.url), clock=clock, maintenance=False) as served:
            yield served, count_buffers


async def _run_round(measuring: Measuring, number: int) -> None:
    """Every operation once, the queue empty before and after."""
    job = {"type": "one", "payload": {"page": 1}}
    claim = {"worker_id": "worker", "types": ["one"], "limit": 1}
    await measuring.run("POST /jobs", "POST", "/jobs", job)
    (claimed,) = (await measuring.run("claim one", "POST", "/jobs/claim", claim))["jobs"]
    beat = {"fence": claimed["fence"], "progress": {"percent": 50}}
    await measuring.run("heartbeat", "POST", f"/jobs/{claimed['id']}/heartbeat", beat)
    await measuring.run("settle", "POST", "/jobs/settle", {"jobs": [_success(claimed)]})

    await measuring.send("POST", "/jobs/batch", {"jobs": [job | {"type": "many"}] * MANY})
    claim = {"worker_id": "worker", "types": ["many"], "limit": MANY}
    all_claimed = (await measuring.run("claim 100", "POST", "/jobs/claim", claim))["jobs"]
    assert len(all_claimed) == MANY
    await measuring.send("POST", "/jobs/settle", {"jobs": [_success(one) for one in all_claimed]})

    await measuring.run("PUT key", "PUT", f"/keys/small/{number}", BLOB + number.to_bytes(2, "big"))


def _success(claimed: dict[str, Any]) -> dict[str, object]:
    return {"outcome": "succeeded", "id": claimed["id"], "fence": claimed["fence"], "result": {"pages": 1}}
