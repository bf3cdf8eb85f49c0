"""Commands: the operations that rooms request from an engine.

A command that writes runs in one transaction, with its events and counters, and returns after the commit is durable.
A command that raises has changed nothing. A command that only reads sees the state of one moment. Instants and
durations in commands are in microseconds; the clock of the store determines the current time.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Generic, Protocol, TypeVar

import msgspec

R = TypeVar("R", covariant=True)
A = TypeVar("A")


class Command(msgspec.Struct, Generic[R], frozen=True, kw_only=True, gc=False):
    """An operation of an engine. The docstring of each command is its contract; `R` is the type of the result."""


class Store(Protocol):
    """An open engine. Many tasks can run commands at the same time."""

    def run(self, command: Command[A]) -> Awaitable[A]:
        """Run a command, and return its result when all changes are durable."""
