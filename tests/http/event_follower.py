"""A client that follows events over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from ingot.http.routes import PREFIX
from tests.http.serving import Served


class Frame(msgspec.Struct, frozen=True):
    """The fields of a message of the stream."""

    event: str
    data: Any
    id: str | None = None


class Follower:
    """The frames and comments that have arrived, and a way to wait for more."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.comments: list[str] = []
        self.retry: str | None = None
        self.started = asyncio.Event()
        self._changed = asyncio.Condition()

    @property
    def events(self) -> list[Frame]:
        """The frames of events of the log."""
        return [frame for frame in self.frames if frame.id is not None]

    @property
    def ids(self) -> list[str]:
        return [frame.id for frame in self.frames if frame.id is not None]

    async def until(self, condition: Callable[[Follower], Any]) -> None:
        """Wait until this condition holds."""
        async with asyncio.timeout(30), self._changed:
            await self._changed.wait_for(lambda: condition(self))

    async def read(self, lines: AsyncIterator[str]) -> None:
        """Read lines of the stream, and check that they form whole frames."""
        fields: dict[str, str] = {}
        async for line in lines:
            if line.startswith(":"):
                self.comments.append(line)
            elif line:
                name, _, value = line.partition(": ")
                assert name in ("id", "event", "data", "retry"), f"not a field: {line!r}"
                assert name not in fields, f"duplicate field: {line!r}"
                fields[name] = value
                continue
            elif "retry" in fields:
                self.retry = fields.pop("retry")
            elif fields:
                data = msgspec.json.decode(fields["data"])
                self.frames.append(Frame(fields["event"], data, fields.get("id")))
                fields = {}
            async with self._changed:
                self._changed.notify_all()


@asynccontextmanager
async def follow_events(
    served: Served, *, token: str | None = None, last_id: str | None = None, tenant: str | None = None, **query: str
) -> AsyncIterator[Follower]:
    """Follow until the end of the block."""
    follower = Follower()
    headers = {"authorization": f"Bearer {token or served.operator}"}
    if last_id is not None:
        headers["last-event-id"] = last_id
    if tenant is not None:
        headers["ingot-tenant"] = tenant

    async def follow() -> None:
        async with served.client.stream("GET", f"{PREFIX}/events/stream", headers=headers, params=query) as response:
            assert response.status_code == 200, await response.aread()
            assert response.headers["content-type"] == "text/event-stream"
            await follower.read(response.aiter_lines())

    task = asyncio.create_task(follow())
    is_connected = asyncio.create_task(follower.until(lambda follower: follower.retry is not None))
    await asyncio.wait([task, is_connected], return_when=asyncio.FIRST_COMPLETED)
    try:
        assert not task.done(), task.result()
        yield follower
    finally:
        task.cancel()
        is_connected.cancel()
        await asyncio.wait([task, is_connected])
