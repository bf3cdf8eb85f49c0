"""`CoalescingTransport` sends the head of a response together with the first part, and delays nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ingot.http.protocol import CoalescingTransport


class RecordingTransport:
    """A transport that records each write."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.writes.append(b"".join(parts))

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        self.writes.append(b"closed")


class Cycle(msgspec.Struct):
    """The state of a request that the transport reads."""

    transport: Any
    response_started: bool = False


def test_the_head_is_sent_together_with_the_first_part() -> None:
    sent = RecordingTransport()
    cycle: Any = Cycle(sent)
    coalescing = CoalescingTransport(cycle)
    coalescing.write(b"continue")
    cycle.response_started = True
    coalescing.write(b"head ")
    assert sent.writes == [b"continue"]
    for part in (b"first", b"second"):
        coalescing.write(part)
    coalescing.close()
    assert sent.writes == [b"continue", b"head first", b"second", b"closed"]


def test_the_head_of_an_empty_response_is_sent_alone() -> None:
    sent = RecordingTransport()
    cycle: Any = Cycle(sent, response_started=True)
    coalescing = CoalescingTransport(cycle)
    for part in (b"head", b"", b"part"):
        coalescing.write(part)
    assert sent.writes == [b"head", b"part"]
