"""The time that a command may take. All calls of one command to the database share a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final, TypeVar

CALL_SECONDS_MAX: Final = 25.0  # Less than the 30 seconds after which clients stop waiting for a response.
SENT_SHARE_MIN: Final = 0.2  # The share of this time that is left for a call that has waited for its turn.

A = TypeVar("A")


class CommandScope:
    """The deadline of a command in the time of the event loop, and whether one of its calls changed something."""

    __slots__ = ("deadline", "has_written")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.has_written = False


SCOPE: Final[ContextVar[CommandScope | None]] = ContextVar("command_scope", default=None)  # Of the running command.


def next_deadline() -> float:
    """Return the deadline of the running command, or that of a command that begins now."""
    scope = SCOPE.get()
    return asyncio.get_running_loop().time() + CALL_SECONDS_MAX if scope is None else scope.deadline


def next_send_deadline() -> float:
    """Return until when a call may wait before it is sent, so that enough time is left for its response."""
    return next_deadline() - CALL_SECONDS_MAX * SENT_SHARE_MIN


async def run_in_scope(run: Callable[[Any], Awaitable[A]], command: Any) -> A:
    """Run a command, with a deadline that all of its calls share."""
    token = SCOPE.set(CommandScope(asyncio.get_running_loop().time() + CALL_SECONDS_MAX))
    try:
        return await run(command)
    finally:
        SCOPE.reset(token)
