"""What is said to those who send something wrong: enough to mend it, and nothing of their secrets."""

from __future__ import annotations

from typing import Any

import pytest

from ingot.identity.grants import Grant
from tests.http.one_server import on_one_server
from tests.http.serving import Served


def words(problem: dict[str, Any]) -> str:
    return f"{problem['detail']} {problem['hint']}"


async def test_a_token_without_bearer_is_not_told_back(served: Served) -> None:
    answer = await served.client.get("/api/v1/jobs", headers={"authorization": served.operator})
    assert answer.status_code == 401
    assert "`Authorization: Bearer ingot_…`" in words(answer.json())
    assert served.operator[:12] not in answer.text


@on_one_server(
    ("headers", "said"),
    [
        ([], "the request has no credential"),
        ([("authorization", "Bearer ingot_x"), ("authorization", "Bearer ingot_y")], "Authorization was sent twice"),
        ([("x-worker-id", "press")], "X-Worker-ID was sent without X-Worker-Secret"),
        ([("x-worker-secret", "ingotw_x")], "X-Worker-Secret was sent without X-Worker-ID"),
        ([("x-worker-id", "a"), ("x-worker-id", "b"), ("x-worker-secret", "c")], "X-Worker-ID was sent twice"),
        ([("authorization", "Bearer x"), ("x-worker-id", "a"), ("x-worker-secret", "c")], "has two credentials"),
    ],
)
async def test_no_credential_is_told_from_two(served: Served, headers: list[tuple[str, str]], said: str) -> None:
    answer = await served.client.get("/api/v1/jobs", headers=headers)
    assert (answer.status_code, said in answer.json()["detail"]) == (401, True), answer.text


async def test_who_has_no_credential_is_told_where_the_first_one_is(served: Served) -> None:
    assert "data/operator.token" in (await served.client.get("/api/v1/jobs")).json()["hint"]


async def test_a_worker_is_told_what_it_is_and_what_it_runs(served: Served) -> None:
    made = await served.ingot.credentials.create_worker_credential(
        served.ingot.default_tenant.id, "press", types=["greet", "cut"]
    )
    headers = {"x-worker-id": "press", "x-worker-secret": made.secret}

    async def claim(**body: object) -> str:
        answer = await served.client.post("/api/v1/jobs/claim", headers=headers, json=body)
        assert answer.status_code == 403
        return str(answer.json()["hint"])

    assert "press/" in await claim(types=["greet"], worker_id="other")
    assert "press runs greet, cut." in await claim(types=["fold"])
    answer = await served.client.get("/api/v1/jobs", headers=headers)
    assert (answer.status_code, "a token with a grant for jobs.read" in answer.json()["hint"]) == (403, True)


async def test_a_tenant_that_is_not_there_is_told_to_callers_over_http(served: Served) -> None:
    answer = await served.call("GET", "/jobs", headers={"ingot-tenant": "nobody"})
    assert (answer.status_code, answer.json()["code"]) == (404, "tenant_not_found")
    assert "by its slug" in answer.json()["hint"]


@on_one_server(
    ("path", "body", "said"),
    [
        ("/jobs", {"type": "a", "on_dead": "x"}, ": cancel, run"),
        ("/jobs", {"type": "a", "prioritie": 1}, "did you mean `priority`?"),
        ("/jobs", {"type": "a", "x" * 2000: 1}, ": after, "),
        ("/jobs/batch", {"jobs": [{"typ": "a"}]}, "field `typ` in `jobs`; did you mean `type`?"),
        ("/jobs/actions", {"action": "stop"}, ": cancel, retry, change"),
        ("/jobs/actions", {"action": "cancel", "filter": {"status": "x"}}, ": blocked, queued"),
        ("/admin/tenants", {"slug": "a", "groups": {"staff": "boss"}}, ": admin, member, viewer"),
        ("/jobs/settle", {"jobs": [{"id": "x", "fence": 1, "outcome": "ok"}]}, ": succeeded, failed"),
        ("/jobs", {"type": "a", "priority": 9}, "`priority` must be at most 5"),
        ("/jobs", {"type": "a", "idempotency_key": "x" * 513}, "`idempotency_key` must have at most 512 characters"),
        ("/jobs", {"type": "a", "inputs": {"": "0" * 64}}, "a name in `inputs` must have at least 1 character"),
        ("/jobs/batch", {"jobs": [{"type": "a", "tags": ["x"] * 33}]}, "`jobs[0].tags` must have at most 32 entries"),
        ("/jobs/claim", {"types": []}, "`types` must have at least 1 entry"),
        (
            "/admin/tokens",
            {"description": "x", "grants": [{"action": "jobs.read", "resource": "greet"}]},
            "start with jobs/",
        ),
    ],
)
async def test_what_a_body_has_wrong_is_told_so_that_it_can_be_mended(
    served: Served, path: str, body: dict[str, Any], said: str
) -> None:
    answer = await served.call("POST", path, json=body)
    assert answer.status_code == 422
    assert said in words(answer.json())
    assert len(answer.content) < 2000


async def test_what_stands_in_a_mapping_is_not_said_of_the_mapping(served: Served) -> None:
    answer = await served.call("PATCH", "/admin/tenants/default", json={"groups": ["staff"]})
    assert answer.status_code == 422
    assert "viewer" not in words(answer.json())


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("statuss=queued", "query parameter `statuss`; did you mean `status`?"),
        ("limit=ten", "the query parameter `limit`"),
        ("status=lost", ": blocked, queued, running, succeeded, dead, canceled"),
    ],
)
async def test_a_wrong_parameter_is_called_that(served: Served, query: str, said: str) -> None:
    answer = await served.call("GET", f"/jobs?{query}")
    assert (answer.status_code, said in words(answer.json())) == (422, True), answer.text


async def test_the_root_leads_to_the_page_for_people(served: Served) -> None:
    answer = await served.client.get("/")
    assert (answer.status_code, answer.headers["location"]) == (307, "/docs")


@on_one_server("path", ["/healthz", "/docs", "/status", "/metrics", "/openapi.json", "/api/v1/jobs", "/"])
async def test_head_is_answered_as_get_is_without_the_body(served: Served, path: str) -> None:
    headers = {"authorization": f"Bearer {served.operator}"}
    got = await served.client.get(path, headers=headers)
    head = await served.client.head(path, headers=headers)
    assert (head.status_code, head.content) == (got.status_code, b"")
    assert head.headers.get("content-type") == got.headers.get("content-type")
    if path in ("/docs", "/openapi.json"):
        assert head.headers["content-length"] == got.headers["content-length"] != "0"


async def test_head_needs_what_get_needs(served: Served) -> None:
    token = await served.token(Grant(action="events.read"))
    for headers, status in (({}, 401), ({"authorization": f"Bearer {token}"}, 403)):
        assert (await served.client.head("/api/v1/jobs", headers=headers)).status_code == status


async def test_a_stream_has_no_head(served: Served) -> None:
    assert (await served.call("HEAD", "/events/stream")).headers["allow"] == "GET"
    await served.make_job()
    job = await served.claim()
    as_stream = {"accept": "text/event-stream"}
    assert (await served.call("HEAD", f"/jobs/{job['id']}/log", headers=as_stream)).status_code == 405
    assert (await served.call("HEAD", f"/jobs/{job['id']}/log")).status_code == 200
    assert (await served.call("HEAD", "/jobs/claim")).status_code == 405
