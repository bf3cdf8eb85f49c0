"""Scenarios that plant secrets: created by a server, sent by a provider, or sent by clients in wrong fields."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx

from ingot.http.cookies import LOGIN_COOKIE, SESSION_COOKIE
from ingot.identity import credential_secrets
from tests.http.serving import OWN_PAGE
from tests.providers.fake_provider import FakeProvider, FakeResponse
from tests.system.canaries import Canaries, Output

CONFIGURATION = "/.well-known/openid-configuration"
MALFORMED = (
    b"GET /%s\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"%s / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/9.%s\r\nHost: x\r\n\r\n",
    b"GET /api/v1/jobs HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n",
    b"GET /api/v1/jobs HTTP/1.1\r\nHost: x\r\n%s: x\r\nConnection: close\r\n\r\n",
    b"GET /api/v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\x01\r\n\r\n",
    b"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: %s\r\n\r\n",
)


class ProbedServer:
    """A running server, its provider, and all its responses."""

    def __init__(self, url: str, canaries: Canaries, idp: FakeProvider, operator: str) -> None:
        self.url = url
        self.canaries = canaries
        self.idp = idp
        self.operator = {"authorization": f"Bearer {operator}"}
        self.client = httpx.AsyncClient(base_url=url, timeout=45, verify=False)
        self._callers = count(1)

    async def request(
        self, method: str, path: str, headers: dict[str, str] | list[tuple[str, str]] | None = None, **more: Any
    ) -> tuple[httpx.Response, Output]:
        """Send a request from a new client address, so that no rate limit applies."""
        number = next(self._callers)
        sent = [*(headers.items() if isinstance(headers, dict) else headers or [])]
        sent.append(("x-forwarded-for", f"10.0.{number >> 8}.{number & 255}"))
        response = await self.client.request(method, path, headers=sent, **more)
        assert response.status_code != 429, path
        whole = b"\r\n".join(b"%s: %s" % pair for pair in response.headers.raw) + b"\r\n\r\n" + response.content
        return response, self.canaries.add_output(f"the answer {response.status_code} to {method} {path[:60]}", whole)

    async def request_as_operator(self, method: str, path: str, **more: Any) -> tuple[httpx.Response, Output]:
        """Send a request as the operator."""
        return await self.request(method, f"/api/v1{path}", self.operator, **more)

    async def send_raw(self, raw: bytes) -> None:
        """Send bytes that are not a valid request."""
        host, port = self.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(raw)
        self.canaries.add_output(f"the answer to {raw[:20]!r}", await asyncio.wait_for(reader.read(), 30))
        writer.close()


async def make_tokens(server: ProbedServer) -> list[str]:
    """Create valid, revoked and expiring tokens."""
    soon = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    secrets = []
    for description in ("a token", "a revoked token", "an expired token", "another token"):
        body = {"description": description, "grants": [{"action": "jobs.*"}]}
        if "expired" in description:
            body["expires_at"] = soon
        response, output = await server.request_as_operator("POST", "/admin/tokens", json=body)
        assert response.status_code == 201, response.text
        token = server.canaries.add(response.json()["token"], description, allowed_in=output)
        await server.request("GET", "/api/v1/jobs", {"authorization": f"Bearer {token}"})
        if "revoked" in description:
            ended, _ = await server.request_as_operator("DELETE", f"/admin/tokens/{response.json()['id']}")
            assert ended.status_code == 200
            await server.request("GET", "/api/v1/jobs", {"authorization": f"Bearer {token}"})
        secrets.append(token)
    return secrets


async def make_workers(server: ProbedServer) -> list[str]:
    """Create worker secrets, one of them regenerated and one disabled, and send them with right and wrong IDs."""
    secrets = []
    for name in ("press", "mill", "lathe"):
        response, output = await server.request_as_operator("POST", "/admin/workers", json={"id": name})
        secrets.append(server.canaries.add(response.json()["secret"], f"the secret of {name}", allowed_in=output))
    response, output = await server.request_as_operator("POST", "/admin/workers/press/regenerate")
    secrets.append(server.canaries.add(response.json()["secret"], "the next secret of press", allowed_in=output))
    await server.request_as_operator("POST", "/admin/workers/lathe/disable")
    for secret in secrets:
        for name in ("press", "mill", "nobody"):
            sent = {"x-worker-id": name, "x-worker-secret": secret}
            await server.request("POST", "/api/v1/jobs/claim", sent, json={"types": ["greet"]})
            await server.request("POST", "/api/v1/jobs/claim", [*sent.items(), ("x-worker-secret", secret)], json={})
    return secrets


async def make_link(server: ProbedServer, description: str) -> str:
    """Create a sign-in link, and return its secret."""
    response, output = await server.request_as_operator("POST", "/admin/links")
    return server.canaries.add(
        parse_qs(urlsplit(response.json()["url"]).query)["code"][0], description, allowed_in=output
    )


async def use_links(server: ProbedServer) -> dict[str, str]:
    """Create an unused link and one that is used twice. Return the headers of the session."""
    await make_link(server, "a link that nobody uses")
    code = await make_link(server, "a link")
    _, page = await server.request("GET", f"/auth/link?code={code}")
    page.may_contain.add(code)
    signed_in, output = await server.request("POST", f"/auth/link?code={code}", OWN_PAGE)
    assert signed_in.status_code == 303
    session = server.canaries.add(cookie_of(signed_in, SESSION_COOKIE), "the session of a link", allowed_in=output)
    second_use, _ = await server.request("POST", f"/auth/link?code={code}", OWN_PAGE)
    assert second_use.status_code == 401
    await server.request("POST", f"/auth/link?code={code[:-1]}", OWN_PAGE)
    return {"cookie": f"{SESSION_COOKIE}={session}", **OWN_PAGE}


async def use_session(server: ProbedServer, headers: dict[str, str]) -> None:
    """Create a token and request pages with a session."""
    response, output = await server.request(
        "POST", "/api/v1/me/tokens", headers, json={"description": "mine", "grants": [{"action": "jobs.read"}]}
    )
    assert response.status_code == 201, response.text
    token = server.canaries.add(response.json()["token"], "a token of one's own", allowed_in=output)
    for sent in (headers, {"authorization": f"Bearer {token}"}):
        for path in ("/api/v1/me", "/api/v1/me/sessions", "/api/v1/me/tokens", "/me"):
            await server.request("GET", path, sent)
    await server.request(
        "POST", "/api/v1/jobs", {"cookie": headers["cookie"], "origin": "https://evil.example"}, json={}
    )
    await server.request("GET", "/me", {"cookie": f"{headers['cookie']}; {headers['cookie']}"})


def cookie_of(response: httpx.Response, name: str) -> str:
    found = [one.partition(";")[0].partition("=")[2] for one in response.headers.get_list("set-cookie") if name in one]
    assert found, response.text
    return found[0]


async def start_sign_in(server: ProbedServer) -> tuple[str, str]:
    """Start to sign in, and add its secrets. Return the cookie and the state."""
    response, output = await server.request("GET", "/auth/start")
    assert response.status_code == 303, response.text
    login = server.canaries.add(cookie_of(response, LOGIN_COOKIE), "a login cookie", allowed_in=output)
    asked = {name: value for name, (value,) in parse_qs(urlsplit(response.headers["location"]).query).items()}
    for name in ("state", "nonce"):
        server.canaries.add(asked[name], f"a {name}", allowed_in=output)
    server.canaries.add(credential_secrets.derive_secret(login, "verifier"), "a verifier")
    server.idp.claims["nonce"] = asked["nonce"]
    return login, asked["state"]


async def finish_sign_in(
    server: ProbedServer, token_response: Callable[[], FakeResponse] | None = None, **query: str
) -> tuple[httpx.Response, Output]:
    """Start and finish a sign-in with a provider that returns `token_response` for the code."""
    login, state = await start_sign_in(server)
    if token_response is not None:
        server.idp.overrides["/token"] = token_response()
    sent = {"code": server.canaries.create("a code"), "state": state, **query}
    return await server.request(
        "GET", f"/auth/callback?{httpx.QueryParams(sent)}", {"cookie": f"{LOGIN_COOKIE}_{state[:8]}={login}"}
    )


def tokens_of(server: ProbedServer, **claims: Any) -> FakeResponse:
    """Return the provider's response to a code, with additional secrets in it."""
    create, id_token = server.canaries.create, server.idp.sign(**claims)
    server.canaries.add(id_token, "an ID token")
    server.canaries.add(id_token.rpartition(".")[2], "the signature of an ID token")
    tokens = {
        "access_token": create("an access token"),
        "refresh_token": create("a refresh token"),
        "id_token": id_token,
    }
    headers = {"set-cookie": f"op={create('a cookie of the provider')}", "x-secret": create("a header of the provider")}
    return FakeResponse({**tokens, "token_type": "Bearer"}, headers=headers)


async def sign_in(server: ProbedServer) -> dict[str, str]:
    """Sign in with the provider and its userinfo. Return the headers of the session."""
    token_response = {
        **server.idp.userinfo,
        "email": "ada@example.com",
        "secret": server.canaries.create("a claim of userinfo"),
    }
    headers = {"set-cookie": f"op={server.canaries.create('a cookie of userinfo')}"}
    server.idp.overrides["/userinfo"] = FakeResponse(token_response, headers=headers)
    response, output = await finish_sign_in(
        server, lambda: tokens_of(server, email=None, secret=server.canaries.create("a claim"))
    )
    assert (response.status_code, response.headers["location"]) == (303, "/me"), response.text
    session = server.canaries.add(cookie_of(response, SESSION_COOKIE), "a session", allowed_in=output)
    return {"cookie": f"{SESSION_COOKIE}={session}", **OWN_PAGE}


async def fail_to_sign_in(server: ProbedServer) -> None:
    """Let the provider refuse in every way, with a secret in each response."""
    create = server.canaries.create
    refusals = [
        FakeResponse({"error": "invalid_grant", "error_description": create("why a code is refused")}, status=400),
        FakeResponse({"error": "invalid_client", "error_description": create("why a client is refused")}, status=401),
        FakeResponse({"error": create("an error of the provider")}, status=400),
        FakeResponse({"no": create("an answer 500")}, status=500),
        FakeResponse(
            {}, status=302, headers={"location": f"https://evil.example/?{create('where a code is sent on')}"}
        ),
        FakeResponse(create("what is no JSON").encode()),
        FakeResponse({"id_token": 1, "access_token": create("an access token beside no ID token")}),
        FakeResponse({"id_token": create("what is no ID token"), "access_token": create("an access token beside it")}),
    ]
    for refusal in refusals:
        server.idp.overrides["/token"] = refusal
        response, _ = await finish_sign_in(server)
        assert response.status_code in (401, 503), response.text
    response, _ = await finish_sign_in(
        server, lambda: tokens_of(server, nonce="another", secret=create("a claim of a wrong token"))
    )
    assert response.status_code == 401
    server.idp.overrides["/userinfo"] = FakeResponse({"error": create("an error of userinfo")}, status=403)
    response, _ = await finish_sign_in(server, lambda: tokens_of(server, email=None))
    assert response.status_code == 503
    await finish_sign_in(server, error="access_denied", error_description=create("what a browser is told"))
    await finish_sign_in(server, error=create("an error in the callback"))
    await finish_sign_in(server, iss=create("another issuer"))
    await finish_sign_in(server, state=create("a state of nobody's"))
    await server.request(
        "GET", f"/auth/callback?code={create('a code without a way')}&state={create('a state without one')}"
    )
    await server.request("GET", f"/auth/callback?code={create('a code')}&code={create('a code twice')}")


async def fail_to_find_provider(server: ProbedServer) -> None:
    """Let the configuration of the provider be unreadable at first."""
    create = server.canaries.create
    wrong = FakeResponse(
        {"issuer": create("another issuer's name")}, headers={"set-cookie": create("a cookie of no provider")}
    )
    server.idp.overrides[CONFIGURATION] = wrong
    response, _ = await server.request("GET", "/auth/start")
    assert response.status_code == 503
    del server.idp.overrides[CONFIGURATION]
    status = 503
    while status == 503:  # The failure is cached for a moment.
        status = (await server.request("GET", "/auth/start"))[0].status_code


async def send_in_wrong_fields(server: ProbedServer, secret: str) -> None:
    """Send a secret of the server in every part of a request."""
    for path in ("/jobs/{}", "/jobs/{}/log", "/{}", "/admin/tenants/{}", "/admin/users/{}", "/admin/members/{}"):
        await server.request_as_operator("GET", path.format(secret))
    for path in ("/admin/tokens/{}", "/me/sessions/{}", "/admin/tenants/{}", "/workers/{}"):
        await server.request_as_operator("DELETE", path.format(secret))
    for path in ("/nowhere/{}", "/me/{}", "/auth/login?next=/{}", "/auth/start?next=/{}", "/auth/login?{}=1"):
        await server.request("GET", path.format(secret))
    await server.request("POST", f"/me/sessions/{secret}/end", OWN_PAGE)
    for query in ("token={}", "access_token={}", "cursor={}", "status={}", "limit={}", "{}=1", "created_after={}"):
        await server.request_as_operator("GET", f"/jobs?{query.format(secret)}")
    await server.request("GET", f"/api/v1/jobs?authorization=Bearer {secret}")
    await server.request("GET", "/api/v1/events/stream", {**server.operator, "last-event-id": secret})
    for name in ("x-request-id", "ingot-tenant", "traceparent", "x-forwarded-for", "content-type", secret):
        body = {"description": "x", "grants": [{"action": "jobs.*"}], "limits": {"rate": -1}}
        await server.request("POST", "/api/v1/admin/tokens", {**server.operator, name: secret}, json=body)
    await server.request("PUT", "/api/v1/admin/definitions/greet", {**server.operator, "x-request-id": secret}, json={})
    basic = base64.b64encode(f"me:{secret}".encode()).decode()
    for authorization in (secret, f"Basic {basic}", f"Bearer {secret}", f"Bearer {secret[:-1]}", f"Bearer x {secret}"):
        await server.request("GET", "/api/v1/jobs", {"authorization": authorization})
        await server.request("GET", "/api/v1/jobs", [("authorization", authorization)] * 2)
    for sent in (
        {"x-worker-id": secret, "x-worker-secret": secret},
        {"x-worker-id": "mill", "x-worker-secret": secret},
        {"x-worker-secret": secret},
        {"cookie": f"{SESSION_COOKIE}={secret}"},
        {"cookie": f"{secret}={secret}"},
    ):
        await server.request("GET", "/api/v1/jobs", sent)
    bodies: tuple[object, ...] = (
        {"type": "greet", secret: secret},
        {"type": "greet", "priority": secret},
        {"type": "greet", "run_at": secret},
        {"type": {secret: secret}},
        {"type": "greet", "after": [secret]},
        {"type": "greet", "payload": "x" * 2_000_000, "token": secret},
        [secret],
    )
    for one in bodies:
        await server.request_as_operator("POST", "/jobs", json=one)
    await server.request_as_operator("POST", "/admin/tokens", json={"description": "x", "grants": [{"action": secret}]})
    await server.request_as_operator(
        "POST", "/admin/tokens", json={"description": "x", "grants": [{"action": "*", "resource": secret}]}
    )
    await server.request_as_operator("POST", "/admin/members", json={"role": secret, "user": secret})
    await server.request_as_operator("POST", "/admin/members", json={"role": "viewer", "email": secret})
    await server.request_as_operator("POST", "/admin/workers", json={"id": f"{secret}/"})
    as_json = {**server.operator, "content-type": "application/json"}
    for content in (f'{{"type": "{secret}', f'{{"type": {secret}}}', f'"{secret}"', f"\xff{secret}"):
        await server.request("POST", "/api/v1/jobs", as_json, content=content.encode("latin-1"))
    for raw in MALFORMED:
        await server.send_raw(raw % secret.encode())


async def cause_server_errors(
    server: ProbedServer, secrets: list[str], break_tables: Callable[..., Awaitable[None]]
) -> None:
    """Cause unexpected errors while requests contain secrets."""
    await break_tables("{}", "{}_gone")
    statuses = []
    for secret in secrets:
        for sent in (
            {"authorization": f"Bearer {secret}"},
            {"x-worker-id": "mill", "x-worker-secret": secret},
            {"cookie": f"{SESSION_COOKIE}={secret}"},
        ):
            statuses.append((await server.request("GET", "/api/v1/jobs", sent))[0].status_code)
        await server.request("POST", f"/auth/link?code={secret}", OWN_PAGE)
    await server.request("GET", "/auth/start")
    assert statuses.count(500) + statuses.count(503) >= 3
    await break_tables("{}_gone", "{}")


async def request_all_pages(server: ProbedServer, headers: dict[str, str]) -> None:
    """Request every page and list of the server."""
    for path in (
        "/metrics",
        "/openapi.json",
        "/docs",
        "/healthz",
        "/readyz",
        "/auth/login",
        "/me",
        "/static/ingot.css",
    ):
        await server.request("GET", path, {**headers, **server.operator} if path != "/me" else headers)
    for path in ("/admin/tokens", "/admin/tokens?operator=true", "/admin/workers", "/admin/users", "/admin/members"):
        response, _ = await server.request_as_operator("GET", path)
        assert response.status_code == 200, response.text
    for path in ("/jobs", "/events", "/workers", "/admin/tenants", "/admin/definitions"):
        await server.request_as_operator("GET", path)
    cursor: str | None = ""
    entries = 0
    while cursor is not None:
        response, _ = await server.request_as_operator(
            "GET", f"/admin/audit?all=true&limit=20{cursor and '&cursor='}{cursor}"
        )
        assert response.status_code == 200, response.text
        entries += len(response.json()["items"])
        cursor = response.json()["next_cursor"]
    assert entries > 15
