"""The context in which commands run, and the types of the tables of commands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from ingot.engines.json_rows import decode
from ingot.engines.postgres.connection import Database
from ingot.engines.postgres.lane_cache import LaneCache
from ingot.kernel.commands import Command

T = TypeVar("T")


class Context(msgspec.Struct, frozen=True):
    """The database, and what this process knows of it."""

    database: Database
    lane_cache: LaneCache

    async def find(self, kind: type[T], call: str, *values: Any) -> T | None:
        """Call a function that returns one JSON text or NULL, and decode it."""
        ((text,),) = await self.database.call(call, *values)
        return None if text is None else decode(kind, text)

    async def fetch(self, kind: type[T], call: str, *values: Any) -> T:
        """Call a function that always returns one JSON text, and decode it."""
        ((text,),) = await self.database.call(call, *values)
        return decode(kind, text)

    async def find_all(self, kind: type[T], call: str, *values: Any) -> list[T]:
        """Call a function that returns any number of JSON texts, and decode each."""
        return [decode(kind, text) for (text,) in await self.database.call(call, *values)]


Commands = dict[type[Command[Any]], Callable[[Context, Any], Awaitable[Any]]]
BoundCommands = dict[type[Command[Any]], Callable[[Any], Awaitable[Any]]]
