"""A receiver of OpenTelemetry spans."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Received:
    """The requests that a receiver has got."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.paths: list[str] = []
        self.services: set[str] = set()
        self.spans: list[Span] = []

    def take(self, path: str, body: bytes) -> None:
        """Store the spans of a request."""
        request = ExportTraceServiceRequest.FromString(body)
        self.paths.append(path)
        for of_resource in request.resource_spans:
            for attribute in of_resource.resource.attributes:
                if attribute.key == "service.name":
                    self.services.add(attribute.value.string_value)
            self.spans += [span for of_scope in of_resource.scope_spans for span in of_scope.spans]


@contextmanager
def receiving() -> Iterator[Received]:
    """Run a receiver of OTLP over HTTP on a real socket."""

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
