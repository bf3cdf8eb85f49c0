"""Traces of requests: in the jobs that they create, and as spans sent to a receiver."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import apsw
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from ingot.engines.sqlite.store_folder import FILE_NAME
from ingot.http.tracing import open_tracer
from tests.http.serving import Served, serving
from tests.span_receiver import receiving

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


def attributes(span: Span) -> dict[str, str | int]:
    return {
        each.key: each.value.int_value if each.value.HasField("int_value") else each.value.string_value
        for each in span.attributes
    }


async def trace_of(served: Served, headers: dict[str, str], **options: str) -> str | None:
    response = await served.call("POST", "/jobs", json={"type": "noop", **options}, headers=headers)
    assert response.status_code == 201, response.text
    trace: str | None = response.json()["trace_id"]
    return trace


async def test_a_job_has_the_trace_of_its_request_unless_it_names_another(served: Served) -> None:
    assert await trace_of(served, TRACEPARENT) == TRACE
    assert await trace_of(served, TRACEPARENT, trace_id="its own") == "its own"
    assert await trace_of(served, {}) is None
    assert await trace_of(served, {"traceparent": "garbage"}) is None
    batch = await served.call("POST", "/jobs/batch", json={"jobs": [{"type": "noop"}]}, headers=TRACEPARENT)
    assert batch.json()["jobs"][0]["job"]["trace_id"] == TRACE


async def test_every_request_is_a_span_of_its_trace(tmp_path: Path) -> None:
    with receiving() as received:
        tracer = open_tracer(received.url + "/", version="1")
        async with serving(tmp_path / "data", tracer=tracer) as served:
            assert await trace_of(served, TRACEPARENT) == TRACE
            new_trace = await trace_of(served, {})
            await served.client.get("/nowhere/secret")
            unsampled = f"00-{TRACE}-{PARENT}-00"
            assert await trace_of(served, {"traceparent": unsampled}) == TRACE
            with closing(apsw.Connection(str(tmp_path / "data" / FILE_NAME))) as connection:
                connection.execute("ALTER TABLE counts RENAME TO elsewhere")
            assert (await served.call("GET", "/jobs/summary")).status_code == 500
            tenant = served.ingot.default_tenant.id
        await asyncio.to_thread(tracer.close)
    first, second, third, failed = received.spans  # The unsampled request has no span.
    assert set(received.paths) == {"/v1/traces"}
    assert received.services == {"ingot"}
    assert (first.trace_id.hex(), first.parent_span_id.hex()) == (TRACE, PARENT)
    assert (first.name, first.kind) == ("POST /api/v1/jobs", Span.SPAN_KIND_SERVER)
    first_attributes = attributes(first)
    assert first_attributes.pop("ingot.request_id")
    assert first_attributes == {
        "http.request.method": "POST",
        "http.route": "/api/v1/jobs",
        "http.response.status_code": 201,
        "ingot.tenant_id": tenant,
    }
    assert (second.trace_id.hex(), second.parent_span_id) == (new_trace, b"")
    assert (third.name, attributes(third)["http.response.status_code"]) == ("GET", 404)
    assert {span.status.code for span in (first, second, third)} == {Status.STATUS_CODE_UNSET}
    assert (failed.name, failed.status.code) == ("GET /api/v1/jobs/summary", Status.STATUS_CODE_ERROR)
