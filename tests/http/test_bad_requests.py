"""Invalid requests: each gets a problem response, costs little and changes nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ingot.http import json_body
from tests.http.one_server import on_one_server
from tests.http.serving import Served

JSON = {"content-type": "application/json"}


@on_one_server(
    ("body", "status", "code"),
    [
        (b"{", 400, "malformed_body"),
        (b"\xff", 400, "malformed_body"),
        (b'{"type": "a"} x', 400, "malformed_body"),
        (b'{"type": "a", "payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "malformed_body"),
        (b"[]", 422, "invalid_input"),
        (b"{}", 422, "invalid_input"),
        (b"", 422, "invalid_input"),
        (b'{"type": 1}', 422, "invalid_input"),
        (b'{"type": "a", "colour": "red"}', 422, "invalid_input"),
        (b'{"type": "a", "priority": 9}', 422, "invalid_input"),
        (b'{"type": "a", "priority": 1.5}', 422, "invalid_input"),
        (b'{"type": "a", "run_at": "2026-01-01T00:00:00"}', 422, "invalid_input"),
        (b'{"type": "a", "run_at": "yesterday"}', 422, "invalid_input"),
        (b'{"type": "a", "tags": "red"}', 422, "invalid_input"),
        (b'{"type": "a", "payload": 1e400}', 422, "invalid_input"),
        (b'{"type": "a", "payload": "' + b"x" * 70_000 + b'"}', 413, "payload_too_large"),
        (b'{"type": "a", "payload": "' + b"x" * 1_100_000 + b'"}', 413, "body_too_large"),
        (b'{"type": "a", "after": ["nobody"]}', 422, "parent_not_found"),
    ],
)
async def test_an_invalid_body_creates_no_job(served: Served, body: bytes, status: int, code: str) -> None:
    response = await served.call("POST", "/jobs", content=body, headers=JSON)
    problem = response.json()
    assert (response.status_code, problem["code"]) == (status, code), response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert problem["status"] == status
    assert problem["detail"]
    assert problem["hint"]
    assert (await served.call("GET", "/jobs")).json()["items"] == []


@on_one_server("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_a_body_with_another_content_type_is_rejected(served: Served, content_type: str) -> None:
    response = await served.call("POST", "/jobs", content=b'{"type": "a"}', headers={"content-type": content_type})
    assert (response.status_code, response.json()["code"]) == (415, "unsupported_media_type")


@on_one_server(
    "query",
    [
        "colour=red",
        "limit=0",
        "limit=1001",
        "limit=ten",
        "status=lost",
        "limit=1&limit=2",
        "created_after=noon",
        "created_after=5",
        "created_after=1.5e9",
        "cursor=x",
        "&&",
        "%ff",
    ],
)
async def test_an_invalid_query_is_rejected(served: Served, query: str) -> None:
    response = await served.call("GET", f"/jobs?{query}")
    assert (response.status_code, response.json()["code"]) in [(422, "invalid_input"), (422, "invalid_cursor")], (
        response.text
    )


async def test_a_query_is_rejected_by_a_route_without_parameters(served: Served) -> None:
    assert (await served.call("GET", "/jobs/summary?x=1")).status_code == 422


@on_one_server("name", ["x", "..", "%00", "é", "a" * 2000, "0190a000-0000-7000-8000-000000000001"])
async def test_an_invalid_job_id_is_not_found(served: Served, name: str) -> None:
    response = await served.call("GET", f"/jobs/{name}")
    assert response.status_code in (404, 422), response.text
    assert response.json()["code"] in ("job_not_found", "invalid_input", "no_such_route")


async def test_an_unknown_path_is_404_and_a_wrong_method_is_405(served: Served) -> None:
    unknown_path = await served.call("GET", "/nowhere")
    assert (unknown_path.status_code, unknown_path.json()["code"]) == (404, "no_such_route")
    wrong_method = await served.call("DELETE", "/jobs")
    assert (wrong_method.status_code, wrong_method.headers["allow"]) == (405, "GET, HEAD, POST")


async def test_a_valid_request_id_is_returned_and_an_invalid_one_is_replaced(served: Served) -> None:
    response = await served.client.get("/healthz", headers={"x-request-id": "abc-1"})
    assert response.headers["x-request-id"] == "abc-1"
    for bad in ("a b", "x" * 129, "<script>"):
        response = await served.client.get("/healthz", headers={"x-request-id": bad})
        assert response.headers["x-request-id"] != bad


async def send(served: Served, text: bytes) -> bytes:
    """The response of the server to these bytes."""
    host, port = served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(text)
    await writer.drain()
    async with asyncio.timeout(30):
        response = await reader.read(65536)
    writer.close()
    return response


async def test_a_body_that_stops_halfway_gets_a_timeout_response(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_body, "BODY_PAUSE_SECONDS_MAX", 0.1)
    head = f"POST /api/v1/jobs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {served.operator}\r\n"
    response = await send(served, f"{head}content-type: application/json\r\ncontent-length: 100\r\n\r\n{{".encode())
    assert b"408" in response.split(b"\r\n")[0]
    assert b"request_timeout" in response


async def test_a_body_without_a_length_is_limited(served: Served) -> None:
    async def parts() -> Any:
        for _ in range(40):
            yield b"x" * 50_000

    response = await served.call("POST", "/jobs", content=parts(), headers=JSON)
    assert (response.status_code, response.json()["code"]) == (413, "body_too_large")


async def test_a_request_with_two_tokens_is_unauthorized(served: Served) -> None:
    line = f"authorization: Bearer {served.operator}\r\n"
    response = await send(served, f"GET /api/v1/jobs HTTP/1.1\r\nhost: x\r\n{line}{line}\r\n".encode())
    assert b"401" in response.split(b"\r\n")[0]


async def test_an_error_response_does_not_repeat_the_token(served: Served) -> None:
    response = await served.call("POST", "/jobs", token="ingot_" + "s3cret" * 12, json={"type": "a"})
    assert response.status_code == 401
    assert "s3cret" not in response.text


async def test_a_caller_over_its_rate_gets_a_retry_after_header(served: Served) -> None:
    created = await served.call(
        "POST",
        "/admin/tokens",
        json={"description": "slow", "grants": [{"action": "jobs.read"}], "limits": {"rate": 0.5, "burst": 2}},
    )
    token = created.json()["token"]
    responses = [await served.call("GET", "/jobs", token=token) for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]
    assert responses[2].json()["code"] == "too_many_requests"
    assert 1 <= int(responses[2].headers["retry-after"]) <= 2
    metrics = (await served.client.get("/metrics", headers={"authorization": f"Bearer {served.operator}"})).text
    assert 'ingot_http_rate_limited_total{route="/api/v1/jobs"} 1.0' in metrics
