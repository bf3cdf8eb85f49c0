"""Somebody who follows events over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from ingot.http.routes import PREFIX
from tests.http.serving import Served


class Frame(msgspec.Struct, frozen=True):
    """What came between two empty lines. Lines that are no field are errors."""

    event: str
    data: Any
    id: str | None = None


class Follower:
    """The frames that came so far, comments, and a way to wait for more."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.comments: list[str] = []
        self.retry: str | None = None
        self.started = asyncio.Event()
        self._came = asyncio.Condition()

    @property
    def events(self) -> list[Frame]:
        """Those that are in the log."""
        return [frame for frame in self.frames if frame.id is not None]

    @property
    def ids(self) -> list[str]:
        return [frame.id for frame in self.frames if frame.id is not None]

    async def until(self, enough: Callable[[Follower], Any]) -> None:
        """Wait until this holds."""
        async with asyncio.timeout(30), self._came:
            await self._came.wait_for(lambda: enough(self))

    async def read(self, lines: AsyncIterator[str]) -> None:
        """Take in lines, and make sure that they are nothing but whole frames."""
        fields: dict[str, str] = {}
        async for line in lines:
            if line.startswith(":"):
                self.comments.append(line)
            elif line:
                name, _, value = line.partition(": ")
                assert name in ("id", "event", "data", "retry"), f"a line that is no field: {line!r}"
                assert name not in fields, f"twice in one frame: {line!r}"
                fields[name] = value
                continue
            elif "retry" in fields:
                self.retry = fields.pop("retry")
            elif fields:
                data = msgspec.json.decode(fields["data"])
                self.frames.append(Frame(fields["event"], data, fields.get("id")))
                fields = {}
            async with self._came:
                self._came.notify_all()


@asynccontextmanager
async def following(
    served: Served, *, token: str | None = None, last: str | None = None, tenant: str | None = None, **query: str
) -> AsyncIterator[Follower]:
    """Follow until the end of the block."""
    follower = Follower()
    headers = {"authorization": f"Bearer {token or served.operator}"}
    if last is not None:
        headers["last-event-id"] = last
    if tenant is not None:
        headers["ingot-tenant"] = tenant

    async def follow() -> None:
        async with served.client.stream("GET", f"{PREFIX}/events/stream", headers=headers, params=query) as answer:
            assert answer.status_code == 200, await answer.aread()
            assert answer.headers["content-type"] == "text/event-stream"
            await follower.read(answer.aiter_lines())

    task = asyncio.create_task(follow())
    waiting = asyncio.create_task(follower.until(lambda one: one.retry is not None))
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    try:
        assert not task.done(), task.result()
        yield follower
    finally:
        task.cancel()
        waiting.cancel()
        await asyncio.wait([task, waiting])
