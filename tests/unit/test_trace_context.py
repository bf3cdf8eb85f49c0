"""Parsing `traceparent`."""

from __future__ import annotations

import pytest

from ingot.http.tracing import TraceContext, parse_traceparent

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        (f"00-{TRACE}-{PARENT}-01", 1),
        (f"00-{TRACE}-{PARENT}-00", 0),
        (f"cc-{TRACE}-{PARENT}-01", 1),
        (f"cc-{TRACE}-{PARENT}-01-what-the-future-is-like", 1),
    ],
)
def test_a_valid_traceparent_is_parsed(text: str, flags: int) -> None:
    assert parse_traceparent(text) == TraceContext(TRACE, PARENT, flags)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "00",
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE}-{PARENT}-01\n",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{PARENT}-01",
        f"00-{TRACE[:-1]}٣-{PARENT}-01",
    ],
)
def test_an_invalid_traceparent_is_ignored(text: str | None) -> None:
    assert parse_traceparent(text) is None
