"""Details and hints of problems: they are enough to correct the request, and contain no secrets."""

from __future__ import annotations

from typing import Any

import pytest

from ingot.identity.grants import Grant
from tests.http.one_server import on_one_server
from tests.http.serving import Served


def message_of(problem: dict[str, Any]) -> str:
    return f"{problem['detail']} {problem['hint']}"


async def test_a_token_without_bearer_gets_a_hint_that_does_not_repeat_it(served: Served) -> None:
    response = await served.client.get("/api/v1/jobs", headers={"authorization": served.operator})
    assert response.status_code == 401
    assert "`Authorization: Bearer ingot_…`" in message_of(response.json())
    assert served.operator[:12] not in response.text


@on_one_server(
    ("headers", "message"),
    [
        ([], "the request has no credential"),
        ([("authorization", "Bearer ingot_x"), ("authorization", "Bearer ingot_y")], "Authorization was sent twice"),
        ([("x-worker-id", "press")], "X-Worker-ID was sent without X-Worker-Secret"),
        ([("x-worker-secret", "ingotw_x")], "X-Worker-Secret was sent without X-Worker-ID"),
        ([("x-worker-id", "a"), ("x-worker-id", "b"), ("x-worker-secret", "c")], "X-Worker-ID was sent twice"),
        ([("authorization", "Bearer x"), ("x-worker-id", "a"), ("x-worker-secret", "c")], "has two credentials"),
    ],
)
async def test_missing_and_conflicting_credentials_have_different_details(
    served: Served, headers: list[tuple[str, str]], message: str
) -> None:
    response = await served.client.get("/api/v1/jobs", headers=headers)
    assert (response.status_code, message in response.json()["detail"]) == (401, True), response.text


async def test_the_hint_for_a_missing_credential_names_the_operator_token(served: Served) -> None:
    assert "data/operator.token" in (await served.client.get("/api/v1/jobs")).json()["hint"]


async def test_the_hint_for_a_worker_names_its_credential_and_types(served: Served) -> None:
    credential = await served.ingot.credentials.create_worker_credential(
        served.ingot.default_tenant.id, "press", types=["greet", "cut"]
    )
    headers = {"x-worker-id": "press", "x-worker-secret": credential.secret}

    async def claim(**body: object) -> str:
        response = await served.client.post("/api/v1/jobs/claim", headers=headers, json=body)
        assert response.status_code == 403
        return str(response.json()["hint"])

    assert "press/" in await claim(types=["greet"], worker_id="other")
    assert "press runs greet, cut." in await claim(types=["fold"])
    response = await served.client.get("/api/v1/jobs", headers=headers)
    assert (response.status_code, "a token with a grant for jobs.read" in response.json()["hint"]) == (403, True)


async def test_an_unknown_tenant_gets_a_hint_about_the_header(served: Served) -> None:
    response = await served.call("GET", "/jobs", headers={"ingot-tenant": "nobody"})
    assert (response.status_code, response.json()["code"]) == (404, "tenant_not_found")
    assert "slug" in response.json()["hint"]


@on_one_server(
    ("path", "body", "message"),
    [
        ("/jobs", {"type": "a", "on_dead": "x"}, ": cancel, run"),
        ("/jobs", {"type": "a", "prioritie": 1}, "did you mean `priority`?"),
        ("/jobs", {"type": "a", "x" * 2000: 1}, ": after, "),
        ("/jobs/batch", {"jobs": [{"typ": "a"}]}, "field `typ` in `jobs`; did you mean `type`?"),
        ("/jobs/actions", {"action": "stop"}, ": cancel, retry, change"),
        ("/jobs/actions", {"action": "cancel", "filter": {"status": "x"}}, ": blocked, queued"),
        ("/admin/tenants", {"slug": "a", "groups": {"staff": "boss"}}, ": admin, member, viewer"),
        ("/jobs/settle", {"jobs": [{"id": "x", "fence": 1, "outcome": "ok"}]}, ": succeeded, failed"),
        ("/jobs", {"type": 5}, "`type` must be a string, got an integer"),
        ("/jobs", [], "the body must be an object, got an array"),
        ("/jobs/batch", {"jobs": [{}]}, "`type` is missing from `jobs[0]`"),
        ("/jobs", {"type": "a", "run_at": "2026-01-01"}, "`run_at` must be a timestamp with a time zone"),
        ("/jobs", {"type": "a", "priority": 9}, "`priority` must be at most 5"),
        ("/jobs", {"type": "a", "idempotency_key": "x" * 513}, "`idempotency_key` must have at most 512 characters"),
        ("/jobs", {"type": "a", "inputs": {"": "0" * 64}}, "a name in `inputs` must have at least 1 character"),
        ("/jobs/batch", {"jobs": [{"type": "a", "tags": ["x"] * 33}]}, "`jobs[0].tags` must have at most 32 entries"),
        ("/jobs/claim", {"types": ["a"], "pid": 2**60}, "`pid` must be at most 9007199254740992"),
        ("/jobs/claim", {"types": []}, "`types` must have at least 1 entry"),
        (
            "/admin/tokens",
            {"description": "x", "grants": [{"action": "jobs.read", "resource": "greet"}]},
            "start with jobs/",
        ),
    ],
)
async def test_the_problem_of_an_invalid_body_names_the_field_and_the_allowed_values(
    served: Served, path: str, body: dict[str, Any] | list[Any], message: str
) -> None:
    response = await served.call("POST", path, json=body)
    assert response.status_code == 422
    assert message in message_of(response.json())
    assert len(response.content) < 2000


async def test_a_wrong_mapping_is_not_reported_with_the_values_of_its_entries(served: Served) -> None:
    response = await served.call("PATCH", "/admin/tenants/default", json={"groups": ["staff"]})
    assert response.status_code == 422
    assert "viewer" not in message_of(response.json())


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("statuss=queued", "query parameter `statuss`; did you mean `status`?"),
        ("limit=ten", "the query parameter `limit`"),
        ("status=lost", ": blocked, queued, running, succeeded, dead, canceled"),
    ],
)
async def test_the_problem_of_an_invalid_query_names_the_parameter(served: Served, query: str, message: str) -> None:
    response = await served.call("GET", f"/jobs?{query}")
    assert (response.status_code, message in message_of(response.json())) == (422, True), response.text


async def test_the_root_redirects_to_the_docs_page(served: Served) -> None:
    response = await served.client.get("/")
    assert (response.status_code, response.headers["location"]) == (307, "/docs")


@on_one_server("path", ["/healthz", "/docs", "/status", "/metrics", "/openapi.json", "/api/v1/jobs", "/"])
async def test_head_has_the_status_and_headers_of_get_without_a_body(served: Served, path: str) -> None:
    headers = {"authorization": f"Bearer {served.operator}"}
    get = await served.client.get(path, headers=headers)
    head = await served.client.head(path, headers=headers)
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.headers.get("content-type") == get.headers.get("content-type")
    if path in ("/docs", "/openapi.json"):
        assert head.headers["content-length"] == get.headers["content-length"] != "0"


async def test_head_requires_the_grants_of_get(served: Served) -> None:
    token = await served.token(Grant(action="events.read"))
    for headers, status in (({}, 401), ({"authorization": f"Bearer {token}"}, 403)):
        assert (await served.client.head("/api/v1/jobs", headers=headers)).status_code == status


async def test_streams_and_claims_reject_head(served: Served) -> None:
    assert (await served.call("HEAD", "/events/stream")).headers["allow"] == "GET"
    await served.make_job()
    job = await served.claim()
    as_stream = {"accept": "text/event-stream"}
    assert (await served.call("HEAD", f"/jobs/{job['id']}/log", headers=as_stream)).status_code == 405
    assert (await served.call("HEAD", f"/jobs/{job['id']}/log")).status_code == 200
    assert (await served.call("HEAD", "/jobs/claim")).status_code == 405
