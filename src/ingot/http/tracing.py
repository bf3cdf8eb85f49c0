"""Traces: which one a request is part of, as its `traceparent` says, and the spans that tell what we did of it."""

from __future__ import annotations

import re
from typing import Protocol

import msgspec

from ingot.kernel.errors import IngotError

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_VERSION = "ff"


class OtelMissing(IngotError):
    """Spans are to be sent, and what sends them is not installed."""

    code = "otel_missing"
    hint = "Install it with `pip install '.[otel]'` in the checkout, or unset OTEL_EXPORTER_OTLP_ENDPOINT."


class TraceContext(msgspec.Struct, frozen=True):
    """A trace, the span in it that called us, and the flags that came along."""

    trace_id: str
    parent_span_id: str
    flags: int


class Span(Protocol):
    """One request, as it stands in a trace."""

    @property
    def trace_id(self) -> str:
        """The trace that it is part of."""

    def end(self, *, method: str, route: str | None, status: int, request_id: str, tenant: str) -> None:
        """The request was answered."""


class Tracer(Protocol):
    """Where spans go."""

    def start_span(self, trace: TraceContext | None) -> Span:
        """A request has come, as part of this trace or of a new one."""

    def close(self) -> None:
        """Send what was not sent yet. Blocks."""


def open_tracer(endpoint: str, *, version: str) -> Tracer:
    """Send spans to this OTLP endpoint. Raises `OtelMissing`."""
    try:
        from ingot.http.otel import OtelTracer  # noqa: PLC0415 - may not be installed
    except ImportError as error:
        raise OtelMissing(f"OTEL_EXPORTER_OTLP_ENDPOINT is set, and {error.name} is not installed") from None
    return OtelTracer(endpoint, version=version)


def parse_traceparent(text: str | None) -> TraceContext | None:
    """What a `traceparent` says; one that cannot be is none."""
    found = None if text is None else _TRACEPARENT.fullmatch(text)
    if found is None:
        return None
    version, trace, parent, flags, more = found.groups()
    if version == _NO_VERSION or (version == "00" and more) or not trace.strip("0") or not parent.strip("0"):
        return None
    return TraceContext(trace, parent, int(flags, 16))
