"""What rooms ask of an engine: commands, each run whole.

A write is one command. The engine runs it in one transaction (the change, its event and its counts) and answers only
when it is durable. A command that raises has changed nothing. A command that only reads answers as of one moment.
Instants and durations inside commands are microseconds; the store's own clock says when now is.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Generic, Protocol, TypeVar

import msgspec

R = TypeVar("R", covariant=True)
A = TypeVar("A")


class Command(msgspec.Struct, Generic[R], frozen=True, kw_only=True, gc=False):
    """Something for an engine to do or to read. Its docstring says what is promised; `R` is what it answers."""


class Store(Protocol):
    """An engine that runs commands. Safe to use from many tasks at once."""

    def run(self, command: Command[A]) -> Awaitable[A]:
        """Run a command, and answer when it is done and durable."""
