"""The audit log over HTTP: every administrative route writes an entry with its author, address and request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from prometheus_client import CollectorRegistry

from ingot.events.audit import Act
from ingot.http.metrics import Metrics
from ingot.http.routes import PREFIX
from ingot.identity.grants import Grant
from ingot.identity.secret_values import NewSecret
from ingot.settings import Settings
from ingot.wiring.api_server import build_routes
from tests.http.serving import Served, serving

Json = dict[str, Any]


async def entries_of(served: Served, query: str = "all=true", **options: Any) -> list[Json]:
    response = await served.call("GET", f"/admin/audit?{query}", **options)
    assert response.status_code == 200, response.text
    items: list[Json] = response.json()["items"]
    return items


# -- every route --------------------------------------------------------------------------------------------


class Case(msgspec.Struct):
    """A successful administrative request, and the action of its entry."""

    action: str
    path: str
    json: Json | None = None
    before: Callable[[Served], Awaitable[str]] | None = (
        None  # Prepares the request, and returns the value of `{}` in the path.
    )
    by_person: bool = False  # Sent by a signed-in person, because tokens cannot.


async def a_token(served: Served) -> str:
    created = await served.ingot.credentials.create_token(
        served.ingot.default_tenant.id, description="x", grants=[Grant(action="jobs.read")]
    )
    return created.token.id


async def a_credential(served: Served) -> str:
    return (await served.ingot.credentials.create_worker_credential(None, "press")).credential.id


async def a_disabled_credential(served: Served) -> str:
    await a_credential(served)
    return (await served.ingot.credentials.enable_worker_credential(None, "press", enabled=False)).id


async def a_pause(served: Served) -> str:
    return (await served.ingot.jobs.pause(served.ingot.default_tenant.id, "greet")).type


async def a_secret(served: Served) -> str:
    await served.ingot.secrets.write(served.ingot.default_tenant.id, "mail", NewSecret(value="x"))
    return "mail"


async def a_worker(served: Served) -> str:
    await served.ingot.workers.register(served.ingot.default_tenant.id, "press/1", ["greet"])
    return "press%2F1"


async def a_person(served: Served) -> str:
    return await person_of(served, await served.link())


async def person_of(served: Served, headers: dict[str, str]) -> str:
    return str((await served.client.get("/api/v1/me", headers=headers)).json()["id"])


async def a_disabled_person(served: Served) -> str:
    user = await a_person(served)
    await served.ingot.users.enable(user, enabled=False, act=Act())
    return user


async def a_member(served: Served) -> str:
    created = await served.ingot.members.put(
        served.ingot.default_tenant.id, role="viewer", email="ada@example.com", act=Act()
    )
    return created.id


async def an_own_invitation(served: Served) -> str:
    tenant, user = served.ingot.default_tenant.id, await a_person(served)
    return (await served.ingot.members.put(tenant, role="viewer", user=user, act=Act())).id


async def an_own_tenant(served: Served) -> str:
    await served.ingot.members.accept(await an_own_invitation(served), user=await a_person(served), act=Act())
    return "default"


async def a_session(served: Served) -> str:
    user = await a_person(served)
    (session,) = await served.ingot.sessions.list(user)
    return f"{user}/sessions/{session.id}"


async def another_session(served: Served) -> str:
    user = await a_person(served)
    return (await served.ingot.sessions.list(user))[0].id


async def a_token_of_a_person(served: Served) -> str:
    order = {"description": "mine", "grants": [{"action": "jobs.read"}]}
    return str((await served.client.post("/api/v1/me/tokens", headers=await served.link(), json=order)).json()["id"])


async def a_key(served: Served) -> str:
    return str((await served.call("PUT", "/keys/a.txt", content=b"a")).json()["owner"])


async def a_tenant(served: Served) -> str:
    return (await served.ingot.tenants.create("acme")).slug


CASES = {
    "DELETE /admin/tenants/{slug}": Case("tenant.removed", "/admin/tenants/{}", before=a_tenant),
    "POST /admin/members": Case("member.put", "/admin/members", {"email": "ada@example.com", "role": "member"}),
    "PATCH /admin/members/{id}": Case("member.put", "/admin/members/{}", {"role": "member"}, before=a_member),
    "DELETE /admin/members/{id}": Case("member.removed", "/admin/members/{}", before=a_member),
    "POST /admin/users/{id}/disable": Case("user.disabled", "/admin/users/{}/disable", before=a_person),
    "POST /admin/users/{id}/enable": Case("user.enabled", "/admin/users/{}/enable", before=a_disabled_person),
    "DELETE /admin/users/{id}/sessions/{session}": Case("session.ended", "/admin/users/{}", before=a_session),
    "POST /admin/links": Case("link.created", "/admin/links"),
    "POST /me/invitations/{id}/accept": Case(
        "invitation.accepted", "/me/invitations/{}/accept", before=an_own_invitation, by_person=True
    ),
    "POST /me/tenants/{tenant}/leave": Case(
        "member.left", "/me/tenants/{}/leave", before=an_own_tenant, by_person=True
    ),
    "DELETE /me/sessions/{id}": Case("session.ended", "/me/sessions/{}", before=another_session, by_person=True),
    "POST /me/tokens": Case(
        "token.created", "/me/tokens", {"description": "x", "grants": [{"action": "jobs.read"}]}, by_person=True
    ),
    "DELETE /me/tokens/{id}": Case("token.revoked", "/me/tokens/{}", before=a_token_of_a_person, by_person=True),
    "POST /me/sessions/{id}/end": Case("session.ended", "/me/sessions/{}/end", before=another_session, by_person=True),
    "POST /auth/logout": Case("session.ended", "/auth/logout", by_person=True),
    "POST /admin/tenants": Case("tenant.created", "/admin/tenants", {"slug": "acme"}),
    "PATCH /admin/tenants/{slug}": Case("tenant.changed", "/admin/tenants/default", {"weight": 2}),
    "POST /admin/keys/purge": Case("keys.purged", "/admin/keys/purge", {"all": True, "dry_run": False}, before=a_key),
    "PUT /admin/definitions/{type}": Case("definition.put", "/admin/definitions/greet", {"max_attempts": 2}),
    "POST /admin/tokens": Case(
        "token.created", "/admin/tokens", {"description": "x", "grants": [{"action": "jobs.read"}]}
    ),
    "DELETE /admin/tokens/{id}": Case("token.revoked", "/admin/tokens/{}", before=a_token),
    "POST /admin/workers": Case("worker_credential.created", "/admin/workers", {"id": "press"}),
    "POST /admin/workers/{id}/regenerate": Case(
        "worker_credential.regenerated", "/admin/workers/{}/regenerate", before=a_credential
    ),
    "POST /admin/workers/{id}/enable": Case(
        "worker_credential.enabled", "/admin/workers/{}/enable", before=a_disabled_credential
    ),
    "POST /admin/workers/{id}/disable": Case(
        "worker_credential.disabled", "/admin/workers/{}/disable", before=a_credential
    ),
    "PUT /pauses/{type}": Case("type.paused", "/pauses/greet"),
    "DELETE /pauses/{type}": Case("type.resumed", "/pauses/{}", before=a_pause),
    "PUT /secrets/{name}": Case("secret.put", "/secrets/mail", {"value": "x"}),
    "DELETE /secrets/{name}": Case("secret.deleted", "/secrets/{}", before=a_secret),
    "POST /workers/{id}/drain": Case("worker.drained", "/workers/{}/drain", before=a_worker),
    "DELETE /workers/{id}": Case("worker.removed", "/workers/{}", before=a_worker),
}
PAGES = {"POST /me/sessions/{id}/end", "POST /auth/logout"}
# The author is the person who signs in; tests/http/test_sign_in.py checks that.
BY_SIGNED_IN_PERSON = {"POST /auth/link"}
# It writes an entry for each secret that it changes; tests/http/test_secrets.py checks that.
ONE_ENTRY_PER_SECRET = {"POST /admin/secrets/rotate-key"}
# The entry names nobody; tests/conformance/test_invitations.py checks that.
BY_INVITED_PERSON = {"POST /me/invitations/{id}/decline"}
# It gives no permission and takes none.
ABOUT_ONE_SESSION = {"POST /me/tenants/{tenant}/choose"}
# Requests about jobs and blobs, which have events instead, and requests of workers.
TRAFFIC = {
    "POST /jobs",
    "POST /jobs/batch",
    "POST /jobs/actions",
    "POST /jobs/claim",
    "POST /jobs/settle",
    "PATCH /jobs/{id}",
    "POST /jobs/{id}/cancel",
    "POST /jobs/{id}/retry",
    "POST /jobs/{id}/heartbeat",
    "POST /jobs/{id}/complete",
    "POST /jobs/{id}/fail",
    "POST /jobs/{id}/release",
    "POST /jobs/{id}/snooze",
    "POST /jobs/{id}/downloads",
    "POST /jobs/{id}/uploads",
    "POST /jobs/{id}/uploads/{upload}/parts",
    "POST /jobs/{id}/uploads/{upload}/renew",
    "POST /jobs/{id}/uploads/{upload}/complete",
    "POST /workers",
    "POST /workers/{id}/heartbeat",
    "POST /events",
    "POST /keys",
    "PUT /keys/{key*}",
    "DELETE /keys/{key*}",
    "POST /blobs/uploads",
    "DELETE /blobs/uploads/{id}",
    "POST /blobs/uploads/{id}/parts",
    "POST /blobs/uploads/{id}/complete",
    "PUT /blobs/uploads/{id}/bytes",
    "PATCH /blobs/uploads/{id}/bytes",
    "POST /blobs/{id}/verify",
    "POST /blobs/collect",
}


def test_every_administrative_route_has_a_case(served: Served) -> None:
    table = build_routes(served.ingot, Metrics(CollectorRegistry()))
    writing = {f"{route.method} {route.path.removeprefix(PREFIX)}" for route in table.routes if route.method != "GET"}
    others = TRAFFIC | BY_SIGNED_IN_PERSON | ONE_ENTRY_PER_SECRET | BY_INVITED_PERSON | ABOUT_ONE_SESSION
    assert writing - others == CASES.keys()
    assert not any("/admin/" in name for name in TRAFFIC)


async def send_case(
    served: Served, name: str, headers: dict[str, str] | None = None, token: str | None = None
) -> httpx.Response:
    """Send the request of a case."""
    case, method = CASES[name], name.split(maxsplit=1)[0]
    path = case.path if case.before is None else case.path.format(await case.before(served))
    url = path if name in PAGES else PREFIX + path
    if headers is None:
        headers = {"authorization": f"Bearer {token or served.operator}"}
    return await served.client.request(method, url, json=case.json, headers=headers)


@pytest.mark.parametrize("name", CASES)
async def test_an_administrative_request_writes_one_entry(served: Served, name: str) -> None:
    case = CASES[name]
    response = await send_case(served, name, await served.link() if case.by_person else None)
    assert response.status_code in (200, 201, 204, 303), response.text
    request_id = response.headers["x-request-id"]
    (entry,) = [entry for entry in await entries_of(served) if entry["request_id"] == request_id]
    assert entry["action"] == case.action
    assert (entry["address"], entry["name"]) == ("127.0.0.1", "Operator" if case.by_person else "the first operator")
    unlike_the_response = ("link.created", "keys.purged", "member.left")
    if response.content and not name.startswith("DELETE") and case.action not in unlike_the_response:
        shown = {name: value for name, value in response.json().items() if name not in ("token", "secret")}
        if case.action == "type.paused":  # The entry has the type and the time in other fields.
            shown = {"by": shown["by"]}
        assert entry["after"] == shown.get("body", shown)


@pytest.mark.parametrize("name", CASES)
async def test_a_rejected_administrative_request_writes_no_entry(served: Served, name: str) -> None:
    token = await served.token(Grant(action="jobs.read"), Grant(action="admin.audit"))
    response = await send_case(served, name, token=token)
    assert response.status_code == 403
    assert response.headers["x-request-id"] not in [entry["request_id"] for entry in await entries_of(served)]


# -- author and address -------------------------------------------------------------------------------------


async def test_an_entry_has_the_id_and_the_name_of_its_author(served: Served) -> None:
    created = await served.ingot.credentials.create_token(
        served.ingot.default_tenant.id, description="Ada's laptop", grants=[Grant(action="jobs.manage")]
    )
    headers = {"x-request-id": "r-17"}
    await served.call("PUT", "/pauses/greet", token=created.text, headers=headers)
    (entry,) = await entries_of(served, "action=type.paused")
    assert (entry["who"], entry["name"]) == (f"token:{created.token.id}", "Ada's laptop")
    assert (entry["request_id"], entry["target"], entry["before"]) == ("r-17", "type/greet", None)
    assert entry["after"]["by"] == entry["who"]


@pytest.mark.parametrize(
    ("trusted", "sent", "address"),
    [
        ((), "198.51.100.9", "127.0.0.1"),
        (("127.0.0.1/32",), "198.51.100.9", "198.51.100.9"),
        (("127.0.0.1/32",), "203.0.113.1, 198.51.100.9", "198.51.100.9"),
        (("127.0.0.1/32",), "2001:db8:1:2:3:4:5:6", "2001:db8:1:2:3:4:5:6"),
        (("127.0.0.1/32",), "<script>", "127.0.0.1"),
    ],
)
async def test_an_entry_has_the_forwarded_address_only_from_a_trusted_proxy(
    tmp_path: Path, trusted: tuple[str, ...], sent: str, address: str
) -> None:
    async with serving(tmp_path / "data", Settings(trusted_proxies=trusted)) as served:
        await served.call("PUT", "/pauses/greet", headers={"x-forwarded-for": sent})
        (entry,) = await entries_of(served, "action=type.paused")
        assert entry["address"] == address


async def test_entries_of_the_first_start_have_the_process_as_author(served: Served) -> None:
    created = {entry["action"]: entry for entry in await entries_of(served, "who=process&all=true")}
    assert created["tenant.created"]["target"] == "tenant/default"
    assert (created["token.created"]["tenant"], created["token.created"]["address"]) == (None, None)


async def test_a_worker_that_drains_or_removes_itself_writes_no_entry(served: Served) -> None:
    created = await served.ingot.credentials.create_worker_credential(served.ingot.default_tenant.id, "press")
    headers = {"x-worker-id": "press/1", "x-worker-secret": created.secret}
    token = await served.token(Grant(action="workers.run"))
    entries_before = await entries_of(served)

    async def leave(own: str, **who: Any) -> None:
        for name in (own, "press/2"):
            response = await served.client.post(f"{PREFIX}/workers", json={"id": name, "types": ["greet"]}, **who)
            assert response.status_code == 201, response.text
        path = f"{PREFIX}/workers/{own.replace('/', '%2F')}"
        assert (await served.client.post(f"{path}/drain", **who)).status_code == 200
        assert (await served.client.delete(path, **who)).status_code == 204

    await leave("press/1", headers=headers)
    assert await entries_of(served) == entries_before
    response = await served.client.post(f"{PREFIX}/workers/press%2F2/drain", headers=headers)
    assert response.status_code == 200
    entry, *older = await entries_of(served)
    assert (older, entry["who"], entry["name"], entry["target"]) == (
        entries_before,
        "worker:press",
        "press",
        "worker/press/2",
    )
    body = {"id": "mine", "types": ["greet"]}
    assert (await served.call("POST", "/workers", json=body, token=token)).status_code == 201
    assert (await served.call("DELETE", "/workers/mine", token=token)).status_code == 204
    assert await entries_of(served) == [entry, *entries_before]


# -- reading ------------------------------------------------------------------------------------------------


async def test_a_tenant_reads_only_its_own_entries(served: Served) -> None:
    other = await served.ingot.tenants.create("other")
    own = await served.token(Grant(action="admin.audit"))
    theirs = await served.token(Grant(action="admin.*"), tenant=other.id)
    await served.call("PUT", "/pauses/greet")
    await served.call("PUT", "/admin/definitions/greet", json={"shared": True})
    mine = await entries_of(served, "", token=own)
    assert [entry["action"] for entry in mine[:1]] == ["type.paused"]
    assert {entry["tenant"] for entry in mine} == {served.ingot.default_tenant.id}
    assert {entry["tenant"] for entry in await entries_of(served, "", token=theirs)} == {other.id}
    assert await entries_of(served, "target=type/greet", token=theirs) == []
    assert await entries_of(served, "", headers={"ingot-tenant": "other"}) == await entries_of(served, "", token=theirs)
    assert {entry["tenant"] for entry in await entries_of(served)} == {None, other.id, served.ingot.default_tenant.id}
    response = await served.call("GET", "/admin/audit?all=true", token=theirs)
    assert (response.status_code, response.json()["code"]) == (403, "forbidden")
    response = await served.call("GET", "/admin/audit", token=theirs, headers={"ingot-tenant": "default"})
    assert response.status_code == 403


async def test_filtered_entries_are_paged_and_bad_cursors_are_rejected(served: Served) -> None:
    for number in range(5):
        await served.call("PUT", f"/pauses/t{number}")
    await served.ingot.jobs.pause(served.ingot.default_tenant.id, "t9")
    who = (await entries_of(served, "target=type/t0"))[0]["who"]
    targets, cursor = [], ""
    for size in (2, 2, 1):
        response = (await served.call("GET", f"/admin/audit?action=type.paused&who={who}&limit=2{cursor}")).json()
        assert len(response["items"]) == size
        targets += [entry["target"] for entry in response["items"]]
        cursor = f"&cursor={response['next_cursor']}"
    assert (targets, cursor) == ([f"type/t{number}" for number in range(4, -1, -1)], "&cursor=None")
    first = (await served.call("GET", "/admin/audit?limit=1")).json()["next_cursor"]
    for query in (f"cursor={first}&action=type.paused", f"cursor={first}&all=true", "cursor=x", "limit=0", "after=1"):
        assert (await served.call("GET", f"/admin/audit?{query}")).status_code == 422, query
