"""The head of an answer leaves with what is behind it, and nothing else waits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ingot.http.protocol import CoalescingTransport


class Sent:
    """A transport that keeps what was sent at once."""

    def __init__(self) -> None:
        self.at_once: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.at_once.append(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.at_once.append(b"".join(parts))

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        self.at_once.append(b"closed")


class Cycle(msgspec.Struct):
    """What is looked at of a request and its answer."""

    transport: Any
    response_started: bool = False


def test_a_head_leaves_with_the_first_part() -> None:
    sent = Sent()
    cycle: Any = Cycle(sent)
    together = CoalescingTransport(cycle)
    together.write(b"go on")
    cycle.response_started = True
    together.write(b"head ")
    assert sent.at_once == [b"go on"]
    for part in (b"first", b"second"):
        together.write(part)
    together.close()
    assert sent.at_once == [b"go on", b"head first", b"second", b"closed"]


def test_a_head_leaves_with_nothing_behind_it() -> None:
    sent = Sent()
    cycle: Any = Cycle(sent, response_started=True)
    together = CoalescingTransport(cycle)
    for part in (b"head", b"", b"part"):
        together.write(part)
    assert sent.at_once == [b"head", b"part"]
