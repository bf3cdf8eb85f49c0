"""Every route of the table, with every wrong credential: a route without a check cannot hide."""

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
from tests.http.route_table import table
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
OF_OPERATORS = {  # Of those that a role has the grant for.
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
    return [route for route in table(served).routes if isinstance(route.needs, Granted)]


async def ask(served: Served, route: Route, headers: dict[str, str], **names: str) -> httpx.Response:
    """A request that the route would take, were the caller the right one."""
    path = route.template.format(**{name: names.get(name, new_id()) for name in route.path_parameters})
    body = None if route.method == "GET" else {"slug": "acme"} if route.path.endswith("/tenants") else {}
    async with served.client.stream(route.method, path, headers=headers, json=body) as answer:
        if answer.headers.get("content-type") != "text/event-stream":  # That has no end.
            await answer.aread()
        return answer


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
def refused(served: Served) -> Callable[..., Any]:
    """Asks all routes, and tells those that did not answer as they should."""

    async def asked(headers: dict[str, str], status: int, code: str) -> list[str]:
        wrong = []
        for route in table(served).routes:
            if isinstance(route.needs, Open):
                continue
            answer = await ask(served, route, headers)
            if isinstance(route.needs, Signed):  # No credential is a signature, right or wrong.
                if (answer.status_code, answer.json().get("code")) != (403, "signature_invalid"):
                    wrong.append(f"{route.method} {route.path}: {answer.status_code} {answer.text[:100]}")
            elif route.is_page:
                wanted, told = (303, status), answer.headers.get("location", "").startswith("/auth/login")
                if answer.status_code not in wanted or (answer.status_code == 303 and not told):
                    wrong.append(f"{route.method} {route.path}: {answer.status_code}")
            elif (answer.status_code, answer.json().get("code")) != (status, code):
                wrong.append(f"{route.method} {route.path}: {answer.status_code} {answer.text[:100]}")
        return wrong

    return asked


def test_nothing_is_open_but_what_is_meant_to_be(served: Served) -> None:
    routes = table(served).routes
    assert {(route.method, route.path) for route in routes if isinstance(route.needs, Open)} == OPEN
    assert len(routes) > 40
    used = {route.needs.action for route in routes if isinstance(route.needs, Granted)}
    assert used <= ACTIONS


@pytest.mark.parametrize("kind", ["none", "garbage", "basic", "forged", "two", "query", "half a worker", "worker"])
async def test_who_is_nobody_is_refused(served: Served, refused: Callable[..., Any], kind: str) -> None:
    made = await served.ingot.credentials.create_token(
        served.ingot.default_tenant.id, description="x", grants=[Grant(action="*")]
    )
    await served.ingot.credentials.create_worker_credential(None, "press")
    headers: dict[str, str] = {
        "none": {},
        "garbage": bearer("secret"),
        "basic": {"authorization": "Basic dXNlcjpwYXNz"},
        "forged": bearer(credential_secrets.new_token(made.token.id)),
        "two": {
            **bearer(made.text),
            "x-worker-id": "press",
            "x-worker-secret": credential_secrets.new_secret(credential_secrets.WORKER_PREFIX),
        },
        "query": {"x-token": made.text},
        "half a worker": {"x-worker-id": "press"},
        "worker": {
            "x-worker-id": "press",
            "x-worker-secret": credential_secrets.new_secret(credential_secrets.WORKER_PREFIX),
        },
    }[kind]
    assert await refused(headers, 401, "unauthorized") == []


async def test_a_token_that_was_ended_is_refused(served: Served, refused: Callable[..., Any]) -> None:
    made = await served.ingot.credentials.create_token(
        served.ingot.default_tenant.id, description="x", grants=[Grant(action="*")]
    )
    assert (await served.call("GET", "/jobs", token=made.text)).status_code == 200
    await served.call("DELETE", f"/admin/tokens/{made.token.id}")
    assert await refused(bearer(made.text), 401, "unauthorized") == []


async def test_a_token_that_has_expired_is_refused(served: Served, refused: Callable[..., Any]) -> None:
    expires_at = datetime.now(UTC) + timedelta(seconds=1)
    token = await served.token(expires_at=expires_at)
    await eventually(lambda: datetime.now(UTC) > expires_at)
    assert await refused(bearer(token), 401, "unauthorized") == []


async def test_each_route_needs_a_grant_for_its_action(served: Served) -> None:
    tokens = {action: await served.token(Grant(action=action)) for action in ACTIONS}
    for route in granted(served):
        assert isinstance(route.needs, Granted)
        other = next(action for action in sorted(ACTIONS) if action != route.needs.action)
        answer = await ask(served, route, bearer(tokens[other]))
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), f"{route.method} {route.path}"


async def test_a_worker_has_no_say_outside_its_work(served: Served) -> None:
    made = await served.ingot.credentials.create_worker_credential(served.ingot.default_tenant.id, "press")
    headers = {"x-worker-id": "press", "x-worker-secret": made.secret}
    for route in granted(served):
        assert isinstance(route.needs, Granted)
        if not route.needs.action.startswith("workers."):
            answer = await ask(served, route, headers)
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), f"{route.method} {route.path}"


async def test_another_tenant_finds_nothing_and_changes_nothing(served: Served) -> None:
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
        ):  # These name things of one's own.
            continue
        names = {"id": job["id"], "slug": "default", "batch": "none"}
        if "workers" in route.path:
            names["id"] = worker.credential.id
        elif "tokens" in route.path:
            names["id"] = own.token.id
        answer = await ask(served, route, bearer(token), **names)
        assert answer.status_code in (403, 404, 422), f"{route.method} {route.path}: {answer.text}"
    headers = {**bearer(token), "ingot-tenant": "default"}
    assert (await served.client.get("/api/v1/jobs", headers=headers)).status_code == 403
    assert (await served.call("GET", path)).json() == job
    assert (await served.call("GET", "/jobs", token=own.text)).status_code == 200
    assert (await served.ingot.authenticator.authenticate_worker("press", worker.secret)).id == "press"


# -- people ---------------------------------------------------------------------------------------------------


@pytest.fixture
async def people(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path / "people", PEOPLE) as one:
        await one.give_groups(readers="viewer", makers="member", admins="admin")
        yield one


@pytest.mark.parametrize(
    ("group", "role"), [("readers", "viewer"), ("makers", "member"), ("admins", "admin"), ("strangers", None)]
)
async def test_each_role_reaches_what_it_may_and_nothing_else(people: Served, group: str, role: Role | None) -> None:
    headers = await people.sign_in(group)
    grants = () if role is None else ROLE_GRANTS[role]
    for route in granted(people):
        assert isinstance(route.needs, Granted)
        may = route.needs.is_met(lambda action: allows(grants, action))
        answer = await ask(people, route, headers)
        told = f"{role}: {route.method} {route.path}: {answer.status_code}"
        if not may or (route.method, route.path) in OF_OPERATORS:
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), told
        else:
            assert answer.status_code not in (401, 403), told


async def test_an_operator_reaches_everything(people: Served) -> None:
    provided, local = await people.sign_in("operators"), await people.link()
    for route in granted(people):
        headers = local if route.path.endswith("/admin/links") else provided  # Links outlast who has a provider.
        answer = await ask(people, route, headers)
        assert answer.status_code not in (401, 403), f"{route.method} {route.path}: {answer.status_code}"


async def test_a_page_of_another_site_reaches_nothing_that_changes_something(people: Served) -> None:
    headers = {**await people.sign_in("operators"), "sec-fetch-site": "cross-site"}
    for route in table(people).routes:
        if route.method != "GET" and isinstance(route.needs, Authenticated | Granted):
            answer = await ask(people, route, headers)
            assert answer.status_code == 403, f"{route.method} {route.path}: {answer.text}"
            assert "cross_site" in answer.text, f"{route.method} {route.path}"


@pytest.mark.parametrize("how", ["ended", "disabled", "forged"])
async def test_a_session_that_does_not_hold_is_refused_everywhere(people: Served, how: str) -> None:
    headers = await people.sign_in("operators")
    me = (await people.client.get("/api/v1/me", headers=headers)).json()
    if how == "ended":
        await people.call("DELETE", f"/admin/users/{me['id']}/sessions/{me['session']['id']}")
    elif how == "disabled":
        await people.call("POST", f"/admin/users/{me['id']}/disable")
    else:
        headers["cookie"] = f"{SESSION_COOKIE}={credential_secrets.new_secret(credential_secrets.SESSION_PREFIX)}"
    for route in table(people).routes:
        if isinstance(route.needs, Open):
            continue
        answer = await ask(people, route, headers)
        refused = 403 if isinstance(route.needs, Signed) else 303 if route.is_page else 401
        assert answer.status_code == refused, f"{route.method} {route.path}: {answer.text}"


def test_a_route_that_does_not_say_all_does_not_start() -> None:
    async def silent(call: object) -> None: ...

    async def unsure(call: object):  # type: ignore[no-untyped-def]
        """Answers something."""

    async def sound(call: object) -> None:
        """Answers nothing."""

    def route(handler: Any) -> Route:
        return Route(method="GET", path="/x", handler=handler, needs=Open(), tag="test")

    RouteTable([route(sound)])
    for routes in ([route(silent)], [route(unsure)], [route(sound), route(sound)]):
        with pytest.raises(InvalidRoute):
            RouteTable(routes)
