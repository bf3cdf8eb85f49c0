"""What every command works on, and the types of the tables that name the function for each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from ingot.engines.postgres.connection import Database
from ingot.engines.postgres.memory import Memory
from ingot.kernel.commands import Command


class Context(msgspec.Struct, frozen=True):
    """The database, and the hints that this process keeps about it."""

    database: Database
    memory: Memory


Commands = dict[type[Command[Any]], Callable[[Context, Any], Awaitable[Any]]]
BoundCommands = dict[type[Command[Any]], Callable[[Any], Awaitable[Any]]]
