"""Distributed tracing: the trace context of a request, and the interface for spans."""

from __future__ import annotations

import re
from typing import Protocol

import msgspec

from ingot.kernel.errors import IngotError

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_INVALID_VERSION = "ff"


class OtelMissing(IngotError):
    """OpenTelemetry is configured but not installed."""

    code = "otel_missing"
    hint = "Install it with `pip install '.[otel]'` in the checkout, or unset OTEL_EXPORTER_OTLP_ENDPOINT."


class TraceContext(msgspec.Struct, frozen=True):
    """The content of a `traceparent` header: the trace, the calling span and the flags."""

    trace_id: str
    parent_span_id: str
    flags: int


class Span(Protocol):
    """The span of one request."""

    @property
    def trace_id(self) -> str:
        """The ID of the trace that this span belongs to."""

    def end(self, *, method: str, route: str | None, status: int, request_id: str, tenant: str) -> None:
        """End the span with the attributes of the request."""


class Tracer(Protocol):
    """Starts spans and sends them when they end."""

    def start_span(self, trace: TraceContext | None) -> Span:
        """Start the span of a request, in this trace or in a new one."""

    def close(self) -> None:
        """Send all remaining spans. Blocks."""


def open_tracer(endpoint: str, *, version: str) -> Tracer:
    """Return a tracer that sends spans to this OTLP endpoint. Raises `OtelMissing`."""
    try:
        from ingot.http.otel import OtelTracer  # noqa: PLC0415 - may not be installed
    except ImportError as error:
        raise OtelMissing(f"OTEL_EXPORTER_OTLP_ENDPOINT is set, but {error.name} is not installed") from None
    return OtelTracer(endpoint, version=version)


def parse_traceparent(text: str | None) -> TraceContext | None:
    """Parse a `traceparent` header. Return `None` if it is missing or invalid."""
    match = None if text is None else _TRACEPARENT.fullmatch(text)
    if match is None:
        return None
    version, trace, parent, flags, extra = match.groups()
    if version == _INVALID_VERSION or (version == "00" and extra) or not trace.strip("0") or not parent.strip("0"):
        return None
    return TraceContext(trace, parent, int(flags, 16))
