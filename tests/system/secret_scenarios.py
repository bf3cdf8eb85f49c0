"""Secrets are planted in a server: made by it, brought by a provider, and put where none belongs."""

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
from tests.system.canaries import Canaries, Outlet

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


class Place:
    """A server that runs, whom it knows, and all that comes out of it."""

    def __init__(self, url: str, canaries: Canaries, idp: FakeProvider, operator: str) -> None:
        self.url = url
        self.canaries = canaries
        self.idp = idp
        self.operator = {"authorization": f"Bearer {operator}"}
        self.client = httpx.AsyncClient(base_url=url, timeout=45, verify=False)
        self._callers = count(1)

    async def ask(
        self, method: str, path: str, headers: dict[str, str] | list[tuple[str, str]] | None = None, **more: Any
    ) -> tuple[httpx.Response, Outlet]:
        """A request, each from an address of its own: nobody is told to wait."""
        number = next(self._callers)
        sent = [*(headers.items() if isinstance(headers, dict) else headers or [])]
        sent.append(("x-forwarded-for", f"10.0.{number >> 8}.{number & 255}"))
        answer = await self.client.request(method, path, headers=sent, **more)
        assert answer.status_code != 429, path
        whole = b"\r\n".join(b"%s: %s" % pair for pair in answer.headers.raw) + b"\r\n\r\n" + answer.content
        return answer, self.canaries.let_out(f"the answer {answer.status_code} to {method} {path[:60]}", whole)

    async def manage(self, method: str, path: str, **more: Any) -> tuple[httpx.Response, Outlet]:
        """A request of the operator."""
        return await self.ask(method, f"/api/v1{path}", self.operator, **more)

    async def say(self, raw: bytes) -> None:
        """Something that is no request."""
        host, port = self.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(raw)
        self.canaries.let_out(f"the answer to {raw[:20]!r}", await asyncio.wait_for(reader.read(), 30))
        writer.close()


async def make_tokens(place: Place) -> list[str]:
    """Tokens that hold, that were revoked, and that soon do not hold any more."""
    soon = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    made = []
    for what in ("a token", "a revoked token", "an expired token", "another token"):
        body = {"description": what, "grants": [{"action": "jobs.*"}]}
        if "expired" in what:
            body["expires_at"] = soon
        answer, shown = await place.manage("POST", "/admin/tokens", json=body)
        assert answer.status_code == 201, answer.text
        token = place.canaries.keep(answer.json()["token"], what, shown_in=shown)
        await place.ask("GET", "/api/v1/jobs", {"authorization": f"Bearer {token}"})
        if "revoked" in what:
            ended, _ = await place.manage("DELETE", f"/admin/tokens/{answer.json()['id']}")
            assert ended.status_code == 200
            await place.ask("GET", "/api/v1/jobs", {"authorization": f"Bearer {token}"})
        made.append(token)
    return made


async def make_workers(place: Place) -> list[str]:
    """Secrets of workers: the first and the next, one that is let out, one that is sent with another's id."""
    made = []
    for name in ("press", "mill", "lathe"):
        answer, shown = await place.manage("POST", "/admin/workers", json={"id": name})
        made.append(place.canaries.keep(answer.json()["secret"], f"the secret of {name}", shown_in=shown))
    answer, shown = await place.manage("POST", "/admin/workers/press/regenerate")
    made.append(place.canaries.keep(answer.json()["secret"], "the next secret of press", shown_in=shown))
    await place.manage("POST", "/admin/workers/lathe/disable")
    for secret in made:
        for name in ("press", "mill", "nobody"):
            sent = {"x-worker-id": name, "x-worker-secret": secret}
            await place.ask("POST", "/api/v1/jobs/claim", sent, json={"types": ["greet"]})
            await place.ask("POST", "/api/v1/jobs/claim", [*sent.items(), ("x-worker-secret", secret)], json={})
    return made


async def make_link(place: Place, what: str) -> str:
    """The secret in a new link."""
    answer, shown = await place.manage("POST", "/admin/links")
    return place.canaries.keep(parse_qs(urlsplit(answer.json()["url"]).query)["code"][0], what, shown_in=shown)


async def use_links(place: Place) -> dict[str, str]:
    """Links of the operator: one that is used, twice, and one that is not. The headers of who came in."""
    await make_link(place, "a link that nobody uses")
    code = await make_link(place, "a link")
    _, asking = await place.ask("GET", f"/auth/link?code={code}")
    asking.shows.add(code)
    came, shown = await place.ask("POST", f"/auth/link?code={code}", OWN_PAGE)
    assert came.status_code == 303
    session = place.canaries.keep(cookie_of(came, SESSION_COOKIE), "the session of a link", shown_in=shown)
    again, _ = await place.ask("POST", f"/auth/link?code={code}", OWN_PAGE)
    assert again.status_code == 401
    await place.ask("POST", f"/auth/link?code={code[:-1]}", OWN_PAGE)
    return {"cookie": f"{SESSION_COOKIE}={session}", **OWN_PAGE}


async def use_session(place: Place, headers: dict[str, str]) -> None:
    """What somebody with a session makes: tokens of their own, and another session in the place of this one."""
    answer, shown = await place.ask(
        "POST", "/api/v1/me/tokens", headers, json={"description": "mine", "grants": [{"action": "jobs.read"}]}
    )
    assert answer.status_code == 201, answer.text
    token = place.canaries.keep(answer.json()["token"], "a token of one's own", shown_in=shown)
    for sent in (headers, {"authorization": f"Bearer {token}"}):
        for path in ("/api/v1/me", "/api/v1/me/sessions", "/api/v1/me/tokens", "/me"):
            await place.ask("GET", path, sent)
    await place.ask("POST", "/api/v1/jobs", {"cookie": headers["cookie"], "origin": "https://evil.example"}, json={})
    await place.ask("GET", "/me", {"cookie": f"{headers['cookie']}; {headers['cookie']}"})


def cookie_of(answer: httpx.Response, name: str) -> str:
    found = [one.partition(";")[0].partition("=")[2] for one in answer.headers.get_list("set-cookie") if name in one]
    assert found, answer.text
    return found[0]


async def set_out(place: Place) -> tuple[str, str]:
    """Set out to sign in: the cookie and the state, after all that belongs to it is planted."""
    answer, shown = await place.ask("GET", "/auth/start")
    assert answer.status_code == 303, answer.text
    login = place.canaries.keep(cookie_of(answer, LOGIN_COOKIE), "a login cookie", shown_in=shown)
    asked = {name: value for name, (value,) in parse_qs(urlsplit(answer.headers["location"]).query).items()}
    for name in ("state", "nonce"):
        place.canaries.keep(asked[name], f"a {name}", shown_in=shown)
    place.canaries.keep(credential_secrets.derive_secret(login, "verifier"), "a verifier")
    place.idp.claims["nonce"] = asked["nonce"]
    return login, asked["state"]


async def come_back(
    place: Place, told: Callable[[], FakeResponse] | None = None, **query: str
) -> tuple[httpx.Response, Outlet]:
    """Set out and come back, to a provider that says this for the code."""
    login, state = await set_out(place)
    if told is not None:
        place.idp.overrides["/token"] = told()
    sent = {"code": place.canaries.new("a code"), "state": state, **query}
    return await place.ask(
        "GET", f"/auth/callback?{httpx.QueryParams(sent)}", {"cookie": f"{LOGIN_COOKIE}_{state[:8]}={login}"}
    )


def tokens_of(place: Place, **claims: Any) -> FakeResponse:
    """What a provider gives for a code, and more than it was asked for."""
    new, id_token = place.canaries.new, place.idp.sign(**claims)
    place.canaries.keep(id_token, "an ID token")
    place.canaries.keep(id_token.rpartition(".")[2], "the signature of an ID token")
    given = {"access_token": new("an access token"), "refresh_token": new("a refresh token"), "id_token": id_token}
    headers = {"set-cookie": f"op={new('a cookie of the provider')}", "x-secret": new("a header of the provider")}
    return FakeResponse({**given, "token_type": "Bearer"}, headers=headers)


async def sign_in(place: Place) -> dict[str, str]:
    """By way of the provider, which is asked for more with the access token. The headers of who came in."""
    told = {**place.idp.userinfo, "email": "ada@example.com", "secret": place.canaries.new("a claim of userinfo")}
    headers = {"set-cookie": f"op={place.canaries.new('a cookie of userinfo')}"}
    place.idp.overrides["/userinfo"] = FakeResponse(told, headers=headers)
    answer, shown = await come_back(place, lambda: tokens_of(place, email=None, secret=place.canaries.new("a claim")))
    assert (answer.status_code, answer.headers["location"]) == (303, "/me"), answer.text
    session = place.canaries.keep(cookie_of(answer, SESSION_COOKIE), "a session", shown_in=shown)
    return {"cookie": f"{SESSION_COOKIE}={session}", **OWN_PAGE}


async def fail_to_sign_in(place: Place) -> None:
    """Every way that a provider says no, with something secret in it."""
    new = place.canaries.new
    refusals = [
        FakeResponse({"error": "invalid_grant", "error_description": new("why a code is refused")}, status=400),
        FakeResponse({"error": "invalid_client", "error_description": new("why a client is refused")}, status=401),
        FakeResponse({"error": new("an error of the provider")}, status=400),
        FakeResponse({"no": new("an answer 500")}, status=500),
        FakeResponse({}, status=302, headers={"location": f"https://evil.example/?{new('where a code is sent on')}"}),
        FakeResponse(new("what is no JSON").encode()),
        FakeResponse({"id_token": 1, "access_token": new("an access token beside no ID token")}),
        FakeResponse({"id_token": new("what is no ID token"), "access_token": new("an access token beside it")}),
    ]
    for refusal in refusals:
        place.idp.overrides["/token"] = refusal
        answer, _ = await come_back(place)
        assert answer.status_code in (401, 503), answer.text
    answer, _ = await come_back(
        place, lambda: tokens_of(place, nonce="another", secret=new("a claim of a wrong token"))
    )
    assert answer.status_code == 401
    place.idp.overrides["/userinfo"] = FakeResponse({"error": new("an error of userinfo")}, status=403)
    answer, _ = await come_back(place, lambda: tokens_of(place, email=None))
    assert answer.status_code == 503
    await come_back(place, error="access_denied", error_description=new("what a browser is told"))
    await come_back(place, error=new("an error in the callback"))
    await come_back(place, iss=new("another issuer"))
    await come_back(place, state=new("a state of nobody's"))
    await place.ask("GET", f"/auth/callback?code={new('a code without a way')}&state={new('a state without one')}")
    await place.ask("GET", f"/auth/callback?code={new('a code')}&code={new('a code twice')}")


async def find_no_provider(place: Place) -> None:
    """A provider whose configuration cannot be read, and then can."""
    new = place.canaries.new
    wrong = FakeResponse(
        {"issuer": new("another issuer's name")}, headers={"set-cookie": new("a cookie of no provider")}
    )
    place.idp.overrides[CONFIGURATION] = wrong
    answer, _ = await place.ask("GET", "/auth/start")
    assert answer.status_code == 503
    del place.idp.overrides[CONFIGURATION]
    status = 503
    while status == 503:  # A failure is kept for a moment.
        status = (await place.ask("GET", "/auth/start"))[0].status_code


async def misplace(place: Place, secret: str) -> None:
    """Send a secret of ours wherever a request has room for it."""
    for path in ("/jobs/{}", "/jobs/{}/log", "/{}", "/admin/tenants/{}", "/admin/users/{}", "/admin/members/{}"):
        await place.manage("GET", path.format(secret))
    for path in ("/admin/tokens/{}", "/me/sessions/{}", "/admin/tenants/{}", "/workers/{}"):
        await place.manage("DELETE", path.format(secret))
    for path in ("/nowhere/{}", "/me/{}", "/auth/login?next=/{}", "/auth/start?next=/{}", "/auth/login?{}=1"):
        await place.ask("GET", path.format(secret))
    await place.ask("POST", f"/me/sessions/{secret}/end", OWN_PAGE)
    for query in ("token={}", "access_token={}", "cursor={}", "status={}", "limit={}", "{}=1", "created_after={}"):
        await place.manage("GET", f"/jobs?{query.format(secret)}")
    await place.ask("GET", f"/api/v1/jobs?authorization=Bearer {secret}")
    await place.ask("GET", "/api/v1/events/stream", {**place.operator, "last-event-id": secret})
    for name in ("x-request-id", "ingot-tenant", "traceparent", "x-forwarded-for", "content-type", secret):
        body = {"description": "x", "grants": [{"action": "jobs.*"}], "limits": {"rate": -1}}
        await place.ask("POST", "/api/v1/admin/tokens", {**place.operator, name: secret}, json=body)
    await place.ask("PUT", "/api/v1/admin/definitions/greet", {**place.operator, "x-request-id": secret}, json={})
    basic = base64.b64encode(f"me:{secret}".encode()).decode()
    for authorization in (secret, f"Basic {basic}", f"Bearer {secret}", f"Bearer {secret[:-1]}", f"Bearer x {secret}"):
        await place.ask("GET", "/api/v1/jobs", {"authorization": authorization})
        await place.ask("GET", "/api/v1/jobs", [("authorization", authorization)] * 2)
    for sent in (
        {"x-worker-id": secret, "x-worker-secret": secret},
        {"x-worker-id": "mill", "x-worker-secret": secret},
        {"x-worker-secret": secret},
        {"cookie": f"{SESSION_COOKIE}={secret}"},
        {"cookie": f"{secret}={secret}"},
    ):
        await place.ask("GET", "/api/v1/jobs", sent)
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
        await place.manage("POST", "/jobs", json=one)
    await place.manage("POST", "/admin/tokens", json={"description": "x", "grants": [{"action": secret}]})
    await place.manage(
        "POST", "/admin/tokens", json={"description": "x", "grants": [{"action": "*", "resource": secret}]}
    )
    await place.manage("POST", "/admin/members", json={"role": secret, "user": secret})
    await place.manage("POST", "/admin/members", json={"role": "viewer", "email": secret})
    await place.manage("POST", "/admin/workers", json={"id": f"{secret}/"})
    as_json = {**place.operator, "content-type": "application/json"}
    for content in (f'{{"type": "{secret}', f'{{"type": {secret}}}', f'"{secret}"', f"\xff{secret}"):
        await place.ask("POST", "/api/v1/jobs", as_json, content=content.encode("latin-1"))
    for raw in MALFORMED:
        await place.say(raw % secret.encode())


async def fail_within(place: Place, known: list[str], break_tables: Callable[..., Awaitable[None]]) -> None:
    """What is logged of a failure that nobody has thought of."""
    await break_tables("{}", "{}_gone")
    statuses = []
    for secret in known:
        for sent in (
            {"authorization": f"Bearer {secret}"},
            {"x-worker-id": "mill", "x-worker-secret": secret},
            {"cookie": f"{SESSION_COOKIE}={secret}"},
        ):
            statuses.append((await place.ask("GET", "/api/v1/jobs", sent))[0].status_code)
        await place.ask("POST", f"/auth/link?code={secret}", OWN_PAGE)
    await place.ask("GET", "/auth/start")
    assert statuses.count(500) + statuses.count(503) >= 3
    await break_tables("{}_gone", "{}")


async def look_everywhere(place: Place, headers: dict[str, str]) -> None:
    """All that a server shows."""
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
        await place.ask("GET", path, {**headers, **place.operator} if path != "/me" else headers)
    for path in ("/admin/tokens", "/admin/tokens?operator=true", "/admin/workers", "/admin/users", "/admin/members"):
        answer, _ = await place.manage("GET", path)
        assert answer.status_code == 200, answer.text
    for path in ("/jobs", "/events", "/workers", "/admin/tenants", "/admin/definitions"):
        await place.manage("GET", path)
    cursor: str | None = ""
    entries = 0
    while cursor is not None:
        answer, _ = await place.manage("GET", f"/admin/audit?all=true&limit=20{cursor and '&cursor='}{cursor}")
        assert answer.status_code == 200, answer.text
        entries += len(answer.json()["items"])
        cursor = answer.json()["next_cursor"]
    assert entries > 15
