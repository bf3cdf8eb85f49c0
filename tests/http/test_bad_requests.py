"""Requests that nobody should send: a clear answer, a bounded cost, and nothing changed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ingot.http import app
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
async def test_a_bad_body_makes_no_job(served: Served, body: bytes, status: int, code: str) -> None:
    answer = await served.call("POST", "/jobs", content=body, headers=JSON)
    told = answer.json()
    assert (answer.status_code, told["code"]) == (status, code), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert told["status"] == status
    assert told["detail"]
    assert told["hint"]
    assert (await served.call("GET", "/jobs")).json()["items"] == []


@on_one_server("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_a_body_of_another_kind_is_refused(served: Served, kind: str) -> None:
    answer = await served.call("POST", "/jobs", content=b'{"type": "a"}', headers={"content-type": kind})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")


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
async def test_a_bad_query_is_refused(served: Served, query: str) -> None:
    answer = await served.call("GET", f"/jobs?{query}")
    assert (answer.status_code, answer.json()["code"]) in [(422, "invalid_input"), (422, "invalid_cursor")], answer.text


async def test_a_query_where_none_is_taken_is_refused(served: Served) -> None:
    assert (await served.call("GET", "/jobs/summary?x=1")).status_code == 422


@on_one_server("name", ["x", "..", "%00", "é", "a" * 2000, "0190a000-0000-7000-8000-000000000001"])
async def test_what_is_no_job_is_not_found(served: Served, name: str) -> None:
    answer = await served.call("GET", f"/jobs/{name}")
    assert answer.status_code in (404, 422), answer.text
    assert answer.json()["code"] in ("job_not_found", "invalid_input", "no_such_route")


async def test_what_is_not_there_is_told_from_what_takes_another_method(served: Served) -> None:
    nowhere = await served.call("GET", "/nowhere")
    assert (nowhere.status_code, nowhere.json()["code"]) == (404, "no_such_route")
    wrong = await served.call("DELETE", "/jobs")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD, POST")


async def test_a_request_id_is_kept_when_it_is_one(served: Served) -> None:
    kept = await served.client.get("/healthz", headers={"x-request-id": "abc-1"})
    assert kept.headers["x-request-id"] == "abc-1"
    for bad in ("a b", "x" * 129, "<script>"):
        made = await served.client.get("/healthz", headers={"x-request-id": bad})
        assert made.headers["x-request-id"] != bad


async def send(served: Served, text: bytes) -> bytes:
    """What the server answers to these very bytes."""
    host, port = served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(text)
    await writer.drain()
    async with asyncio.timeout(30):
        answer = await reader.read(65536)
    writer.close()
    return answer


async def test_a_sender_that_stops_half_way_is_told_so(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "BODY_SECONDS_MAX", 0.1)
    head = f"POST /api/v1/jobs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {served.operator}\r\n"
    answer = await send(served, f"{head}content-type: application/json\r\ncontent-length: 100\r\n\r\n{{".encode())
    assert b"408" in answer.split(b"\r\n")[0]
    assert b"request_timeout" in answer


async def test_a_body_without_a_length_is_read_up_to_a_bound(served: Served) -> None:
    async def parts() -> Any:
        for _ in range(40):
            yield b"x" * 50_000

    answer = await served.call("POST", "/jobs", content=parts(), headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")


async def test_two_tokens_in_one_request_are_none(served: Served) -> None:
    line = f"authorization: Bearer {served.operator}\r\n"
    answer = await send(served, f"GET /api/v1/jobs HTTP/1.1\r\nhost: x\r\n{line}{line}\r\n".encode())
    assert b"401" in answer.split(b"\r\n")[0]


async def test_what_was_sent_is_not_shown_in_an_error(served: Served) -> None:
    answer = await served.call("POST", "/jobs", token="ingot_" + "s3cret" * 12, json={"type": "a"})
    assert answer.status_code == 401
    assert "s3cret" not in answer.text


async def test_a_caller_with_a_rate_is_told_when_to_come_again(served: Served) -> None:
    made = await served.call(
        "POST",
        "/admin/tokens",
        json={"description": "slow", "grants": [{"action": "jobs.read"}], "limits": {"rate": 0.5, "burst": 2}},
    )
    token = made.json()["token"]
    answers = [await served.call("GET", "/jobs", token=token) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2].json()["code"] == "too_many_requests"
    assert 1 <= int(answers[2].headers["retry-after"]) <= 2
    metrics = (await served.client.get("/metrics", headers={"authorization": f"Bearer {served.operator}"})).text
    assert 'ingot_http_rate_limited_total{route="/api/v1/jobs"} 1.0' in metrics
