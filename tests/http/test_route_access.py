"""Every route with every wrong credential, so that no route without a check goes unnoticed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from ingot.http.cookies import SESSION_COOKIE
from ingot.http.routes import Authenticated, Granted, InvalidRoute, Open, Route, RouteTable, Signed
from ingot.identity import credential_secrets
from ingot.identity.grants import ACTIONS, Grant, allows
from ingot.identity.people import ROLE_GRANTS, Role
from ingot.kernel.ids import new_id
from tests.http.route_table import route_table_of
from tests.http.serving import PEOPLE, Served, serving
from tests.waiting import eventually

OPEN = {
    ("GET", "/"),
    ("GET", "/healthz"),
    ("GET", "/docs"),
    ("GET", "/auth/login"),
    ("GET", "/auth/start"),
    ("GET", "/auth/callback"),
    ("GET", "/auth/link"),
    ("POST", "/auth/link"),
    ("POST", "/auth/logout"),
    ("GET", "/static/ingot.css"),
}
OPERATOR_ONLY = {  # Routes that reject members even if their role has the grant.
    ("POST", "/api/v1/admin/tenants"),
    ("DELETE", "/api/v1/admin/tenants/{slug}"),
    ("GET", "/api/v1/admin/users"),
    ("GET", "/api/v1/admin/users/{id}"),
    ("POST", "/api/v1/admin/users/{id}/disable"),
    ("POST", "/api/v1/admin/users/{id}/enable"),
    ("GET", "/api/v1/admin/users/{id}/sessions"),
    ("DELETE", "/api/v1/admin/users/{id}/sessions/{session}"),
    ("POST", "/api/v1/admin/links"),
    ("POST", "/api/v1/blobs/collect"),
    ("POST", "/api/v1/admin/secrets/rotate-key"),
}


def granted(served: Served) -> list[Route]:
    return [route for route in route_table_of(served).routes if isinstance(route.needs, Granted)]


async def request(served: Served, route: Route, headers: dict[str, str], **names: str) -> httpx.Response:
    """Send a request that the route would accept from the right caller."""
    path = route.template.format(**{name: names.get(name, new_id()) for name in route.path_parameters})
    body = None if route.method == "GET" else {"slug": "acme"} if route.path.endswith("/tenants") else {}
    async with served.client.stream(route.method, path, headers=headers, json=body) as response:
        if response.headers.get("content-type") != "text/event-stream":  # A stream has no end.
            await response.aread()
        return response


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
def wrong_routes(served: Served) -> Callable[..., Any]:
    """A function that sends a request to every route, and lists those with an unexpected response."""

    async def request_all(headers: dict[str, str], status: int, code: str) -> list[str]:
        wrong = []
        for route in route_table_of(served).routes:
            if isinstance(route.needs, Open):
                continue
            response = await request(served, route, headers)
            if isinstance(route.needs, Signed):  # These routes ignore credentials.
                if (response.status_code, response.json().get("code")) != (403, "signature_invalid"):
                    wrong.append(f"{route.method} {route.path}: {response.status_code} {response.text[:100]}")
            elif route.is_page:
                to_login = response.headers.get("location", "").startswith("/auth/login")
                if response.status_code not in (303, status) or (response.status_code == 303 and not to_login):
                    wrong.append(f"{route.method} {route.path}: {response.status_code}")
            elif (response.status_code, response.json().get("code")) != (status, code):
                wrong.append(f"{route.method} {route.path}: {response.status_code} {response.text[:100]}")
        return wrong

    return request_all


def test_only_the_listed_routes_need_no_credential(served: Served) -> None:
    routes = route_table_of(served).routes
    assert {(route.method, route.path) for route in routes if isinstance(route.needs, Open)} == OPEN
    assert len(routes) > 40
    actions = {route.needs.action for route in routes if isinstance(route.needs, Granted)}
    assert actions <= ACTIONS


@pytest.mark.parametrize("kind", ["none", "garbage", "basic", "forged", "two", "query", "half a worker", "worker"])
async def test_a_missing_or_invalid_credential_is_rejected_by_every_route(
    served: Served, wrong_routes: Callable[..., Any], kind: str
) -> None:
    created = await served.ingot.credentials.create_token(
        served.ingot.default_tenant.id, description="x", grants=[Grant(action="*")]
    )
    await served.ingot.credentials.create_worker_credential(None, "press")
    headers: dict[str, str] = {
        "none": {},
        "garbage": bearer("secret"),
        "basic": {"authorization": "Basic dXNlcjpwYXNz"},
        "forged": bearer(credential_secrets.new_token(created.token.id)),
        "two": {
            **bearer(created.text),
            "x-worker-id": "press",
            "x-worker-secret": credential_secrets.new_secret(credential_secrets.WORKER_PREFIX),
        },
        "query": {"x-token": created.text},
        "half a worker": {"x-worker-id": "press"},
        "worker": {
            "x-worker-id": "press",
            "x-worker-secret": credential_secrets.new_secret(credential_secrets.WORKER_PREFIX),
        },
    }[kind]
    assert await wrong_routes(headers, 401, "unauthorized") == []


async def test_a_revoked_token_is_rejected_by_every_route(served: Served, wrong_routes: Callable[..., Any]) -> None:
    created = await served.ingot.credentials.create_token(
        served.ingot.default_tenant.id, description="x", grants=[Grant(action="*")]
    )
    assert (await served.call("GET", "/jobs", token=created.text)).status_code == 200
    await served.call("DELETE", f"/admin/tokens/{created.token.id}")
    assert await wrong_routes(bearer(created.text), 401, "unauthorized") == []


async def test_an_expired_token_is_rejected_by_every_route(served: Served, wrong_routes: Callable[..., Any]) -> None:
    expires_at = datetime.now(UTC) + timedelta(seconds=1)
    token = await served.token(expires_at=expires_at)
    await eventually(lambda: datetime.now(UTC) > expires_at)
    assert await wrong_routes(bearer(token), 401, "unauthorized") == []


async def test_each_route_needs_a_grant_for_its_action(served: Served) -> None:
    tokens = {action: await served.token(Grant(action=action)) for action in ACTIONS}
    for route in granted(served):
        assert isinstance(route.needs, Granted)
        other = next(action for action in sorted(ACTIONS) if action != route.needs.action)
        response = await request(served, route, bearer(tokens[other]))
        assert (response.status_code, response.json()["code"]) == (403, "forbidden"), f"{route.method} {route.path}"


async def test_a_worker_credential_uses_only_routes_of_workers(served: Served) -> None:
    created = await served.ingot.credentials.create_worker_credential(served.ingot.default_tenant.id, "press")
    headers = {"x-worker-id": "press", "x-worker-secret": created.secret}
    for route in granted(served):
        assert isinstance(route.needs, Granted)
        if not route.needs.action.startswith("workers."):
            response = await request(served, route, headers)
            assert (response.status_code, response.json()["code"]) == (403, "forbidden"), f"{route.method} {route.path}"


async def test_another_tenant_reads_and_changes_nothing(served: Served) -> None:
    path = f"/jobs/{(await served.make_job())['id']}"
    job = (await served.call("GET", path)).json()
    worker = await served.ingot.credentials.create_worker_credential(served.ingot.default_tenant.id, "press")
    own = await served.ingot.credentials.create_token(
        served.ingot.default_tenant.id, description="x", grants=[Grant(action="*")]
    )
    other = await served.ingot.tenants.create("other")
    token = await served.token(tenant=other.id)
    for route in granted(served):
        if not route.path_parameters or {"type", "key"}.intersection(
            route.path_parameters
        ):  # These names are relative to the caller's tenant.
            continue
        names = {"id": job["id"], "slug": "default", "batch": "none"}
        if "workers" in route.path:
            names["id"] = worker.credential.id
        elif "tokens" in route.path:
            names["id"] = own.token.id
        response = await request(served, route, bearer(token), **names)
        assert response.status_code in (403, 404, 422), f"{route.method} {route.path}: {response.text}"
    headers = {**bearer(token), "ingot-tenant": "default"}
    assert (await served.client.get("/api/v1/jobs", headers=headers)).status_code == 403
    assert (await served.call("GET", path)).json() == job
    assert (await served.call("GET", "/jobs", token=own.text)).status_code == 200
    assert (await served.ingot.authenticator.authenticate_worker("press", worker.secret)).id == "press"


# -- people ---------------------------------------------------------------------------------------------------


@pytest.fixture
async def people(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path / "people", PEOPLE) as server:
        await server.give_groups(readers="viewer", makers="member", admins="admin")
        yield server


@pytest.mark.parametrize(
    ("group", "role"), [("readers", "viewer"), ("makers", "member"), ("admins", "admin"), ("strangers", None)]
)
async def test_each_role_uses_exactly_the_routes_of_its_grants(people: Served, group: str, role: Role | None) -> None:
    headers = await people.sign_in(group)
    grants = () if role is None else ROLE_GRANTS[role]
    for route in granted(people):
        assert isinstance(route.needs, Granted)
        is_granted = route.needs.is_met(lambda action: allows(grants, action))
        response = await request(people, route, headers)
        description = f"{role}: {route.method} {route.path}: {response.status_code}"
        if not is_granted or (route.method, route.path) in OPERATOR_ONLY:
            assert (response.status_code, response.json()["code"]) == (403, "forbidden"), description
        else:
            assert response.status_code not in (401, 403), description


async def test_an_operator_uses_every_route(people: Served) -> None:
    provided, local = await people.sign_in("operators"), await people.link()
    for route in granted(people):
        headers = local if route.path.endswith("/admin/links") else provided  # Only the local operator may create them.
        response = await request(people, route, headers)
        assert response.status_code not in (401, 403), f"{route.method} {route.path}: {response.status_code}"


async def test_a_page_of_another_site_cannot_change_anything(people: Served) -> None:
    headers = {**await people.sign_in("operators"), "sec-fetch-site": "cross-site"}
    for route in route_table_of(people).routes:
        if route.method != "GET" and isinstance(route.needs, Authenticated | Granted):
            response = await request(people, route, headers)
            assert response.status_code == 403, f"{route.method} {route.path}: {response.text}"
            assert "cross_site" in response.text, f"{route.method} {route.path}"


@pytest.mark.parametrize("reason", ["ended", "disabled", "forged"])
async def test_an_invalid_session_is_rejected_by_every_route(people: Served, reason: str) -> None:
    headers = await people.sign_in("operators")
    me = (await people.client.get("/api/v1/me", headers=headers)).json()
    if reason == "ended":
        await people.call("DELETE", f"/admin/users/{me['id']}/sessions/{me['session']['id']}")
    elif reason == "disabled":
        await people.call("POST", f"/admin/users/{me['id']}/disable")
    else:
        headers["cookie"] = f"{SESSION_COOKIE}={credential_secrets.new_secret(credential_secrets.SESSION_PREFIX)}"
    for route in route_table_of(people).routes:
        if isinstance(route.needs, Open):
            continue
        response = await request(people, route, headers)
        expected = 403 if isinstance(route.needs, Signed) else 303 if route.is_page else 401
        assert response.status_code == expected, f"{route.method} {route.path}: {response.text}"


def test_an_incomplete_or_duplicate_route_is_rejected_at_start() -> None:
    async def without_docstring(call: object) -> None: ...

    async def without_return_type(call: object):  # type: ignore[no-untyped-def]
        """Do something."""

    async def complete(call: object) -> None:
        """Do nothing."""

    def route(handler: Any) -> Route:
        return Route(method="GET", path="/x", handler=handler, needs=Open(), tag="test")

    RouteTable([route(complete)])
    for routes in ([route(without_docstring)], [route(without_return_type)], [route(complete), route(complete)]):
        with pytest.raises(InvalidRoute):
            RouteTable(routes)
