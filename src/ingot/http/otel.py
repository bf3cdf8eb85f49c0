"""Sending spans with OpenTelemetry. Importing this module fails unless the extra `otel` is installed."""

from __future__ import annotations

from typing import Final

from opentelemetry import trace as otel
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from ingot.http.tracing import TraceContext

CLOSE_MILLIS_MAX: Final = 3000


class OtelSpan:
    """See `Span`."""

    def __init__(self, span: otel.Span) -> None:
        self._span = span

    @property
    def trace_id(self) -> str:
        """See `Span`."""
        return f"{self._span.get_span_context().trace_id:032x}"

    def end(self, *, method: str, route: str | None, status: int, request_id: str, tenant: str) -> None:
        """See `Span`."""
        span = self._span
        if span.is_recording():
            span.update_name(method if route is None else f"{method} {route}")
            span.set_attributes({"http.request.method": method, "http.response.status_code": status})
            span.set_attributes({"ingot.request_id": request_id, "ingot.tenant_id": tenant})
            if route is not None:
                span.set_attribute("http.route", route)
            if status >= 500:
                span.set_status(otel.StatusCode.ERROR)
        span.end()


class OtelTracer:
    """Sends spans to an OTLP endpoint from a background thread. See `Tracer`."""

    def __init__(self, endpoint: str, *, version: str) -> None:
        resource = Resource.create({"service.name": "ingot", "service.version": version})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces")
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("ingot")

    def start_span(self, trace: TraceContext | None) -> OtelSpan:
        """See `Tracer`."""
        context = Context()
        if trace is not None:
            flags = otel.TraceFlags(trace.flags)
            parent = otel.SpanContext(
                int(trace.trace_id, 16), int(trace.parent_span_id, 16), is_remote=True, trace_flags=flags
            )
            context = otel.set_span_in_context(otel.NonRecordingSpan(parent), context)
        return OtelSpan(self._tracer.start_span("request", context, kind=otel.SpanKind.SERVER))

    def close(self) -> None:
        """See `Tracer`."""
        self._provider.force_flush(CLOSE_MILLIS_MAX)
        self._provider.shutdown()
