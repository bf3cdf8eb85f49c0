"""Traces that go on through us: in jobs, and as spans that a real receiver gets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import apsw
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from ingot.engines.sqlite.opening import FILE_NAME
from ingot.http.traces import open_spans
from tests.http.serving import Served, serving

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


class Received:
    """What came to a receiver."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.paths: list[str] = []
        self.services: set[str] = set()
        self.spans: list[Span] = []

    def take(self, path: str, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        self.paths.append(path)
        for of_resource in request.resource_spans:
            for attribute in of_resource.resource.attributes:
                if attribute.key == "service.name":
                    self.services.add(attribute.value.string_value)
            self.spans += [span for of_scope in of_resource.scope_spans for span in of_scope.spans]


@contextmanager
def receiving() -> Iterator[Received]:
    """A receiver of OTLP over HTTP, on a real socket."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.take(self.path, self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_request(self, *about: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        received = Received(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield received
        finally:
            server.shutdown()
            thread.join()


def attributes(span: Span) -> dict[str, str | int]:
    return {
        one.key: one.value.int_value if one.value.HasField("int_value") else one.value.string_value
        for one in span.attributes
    }


async def trace_of(served: Served, headers: dict[str, str], **options: str) -> str | None:
    answer = await served.call("POST", "/jobs", json={"type": "noop", **options}, headers=headers)
    assert answer.status_code == 201, answer.text
    trace: str | None = answer.json()["trace_id"]
    return trace


async def test_a_job_belongs_to_the_trace_of_its_request_unless_it_says_otherwise(served: Served) -> None:
    assert await trace_of(served, TRACEPARENT) == TRACE
    assert await trace_of(served, TRACEPARENT, trace_id="its own") == "its own"
    assert await trace_of(served, {}) is None
    assert await trace_of(served, {"traceparent": "garbage"}) is None
    batch = await served.call("POST", "/jobs/batch", json={"jobs": [{"type": "noop"}]}, headers=TRACEPARENT)
    assert batch.json()["jobs"][0]["job"]["trace_id"] == TRACE


async def test_every_request_is_a_span_that_goes_on_with_its_trace(tmp_path: Path) -> None:
    with receiving() as received:
        spans = open_spans(received.url + "/", version="1")
        async with serving(tmp_path / "data", spans=spans) as served:
            assert await trace_of(served, TRACEPARENT) == TRACE
            made = await trace_of(served, {})
            await served.client.get("/nowhere/secret")
            quiet = f"00-{TRACE}-{PARENT}-00"
            assert await trace_of(served, {"traceparent": quiet}) == TRACE
            with closing(apsw.Connection(str(tmp_path / "data" / FILE_NAME))) as connection:
                connection.execute("ALTER TABLE counts RENAME TO elsewhere")
            assert (await served.call("GET", "/jobs/summary")).status_code == 500
            tenant = served.ingot.default_tenant.id
        await asyncio.to_thread(spans.close)
    first, second, third, failed = received.spans  # The caller that wants no span of the fourth gets none.
    assert set(received.paths) == {"/v1/traces"}
    assert received.services == {"ingot"}
    assert (first.trace_id.hex(), first.parent_span_id.hex()) == (TRACE, PARENT)
    assert (first.name, first.kind) == ("POST /api/v1/jobs", Span.SPAN_KIND_SERVER)
    told = attributes(first)
    assert told.pop("ingot.request_id")
    assert told == {
        "http.request.method": "POST",
        "http.route": "/api/v1/jobs",
        "http.response.status_code": 201,
        "ingot.tenant_id": tenant,
    }
    assert (second.trace_id.hex(), second.parent_span_id) == (made, b"")
    assert (third.name, attributes(third)["http.response.status_code"]) == ("GET", 404)
    assert {span.status.code for span in (first, second, third)} == {Status.STATUS_CODE_UNSET}
    assert (failed.name, failed.status.code) == ("GET /api/v1/jobs/summary", Status.STATUS_CODE_ERROR)
