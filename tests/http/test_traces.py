"""Traces that go on through us: in jobs, and as spans that a real receiver gets."""

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
        spans = open_tracer(received.url + "/", version="1")
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
