"""The audit log over HTTP: who, from where, and by which request; and no route that manages something forgets it."""

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


async def acts(served: Served, query: str = "all=true", **options: Any) -> list[Json]:
    answer = await served.call("GET", f"/admin/audit?{query}", **options)
    assert answer.status_code == 200, answer.text
    items: list[Json] = answer.json()["items"]
    return items


# -- every route --------------------------------------------------------------------------------------------


class Case(msgspec.Struct):
    """A request that succeeds, once what it needs is there, and what is on record then."""

    action: str
    path: str
    json: Json | None = None
    before: Callable[[Served], Awaitable[str]] | None = None  # Answers what stands for `{}` in the path.
    by_person: bool = False  # Who has signed in, as only people do it.


async def a_token(served: Served) -> str:
    made = await served.ingot.credentials.create_token(
        served.ingot.default_tenant.id, description="x", grants=[Grant(action="jobs.read")]
    )
    return made.token.id


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


async def a_person_put_out(served: Served) -> str:
    user = await a_person(served)
    await served.ingot.users.enable(user, enabled=False, act=Act())
    return user


async def a_member(served: Served) -> str:
    made = await served.ingot.members.put(
        served.ingot.default_tenant.id, role="viewer", email="ada@example.com", act=Act()
    )
    return made.id


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
    "POST /admin/users/{id}/enable": Case("user.enabled", "/admin/users/{}/enable", before=a_person_put_out),
    "DELETE /admin/users/{id}/sessions/{session}": Case("session.ended", "/admin/users/{}", before=a_session),
    "POST /admin/links": Case("link.created", "/admin/links"),
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
BY_ANYBODY = {"POST /auth/link"}  # It is the person it signs in who does it; tests/http/test_sign_in.py looks at that.
OF_EACH = {
    "POST /admin/secrets/rotate-key"
}  # Every secret that it changes has an entry: see tests/http/test_secrets.py.
TRAFFIC = {  # What is done to jobs and blobs, which have events of their own, and what workers say.
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


def test_every_route_that_manages_something_has_a_case(served: Served) -> None:
    table = build_routes(served.ingot, Metrics(CollectorRegistry()))
    writing = {f"{route.method} {route.path.removeprefix(PREFIX)}" for route in table.routes if route.method != "GET"}
    assert writing - TRAFFIC - BY_ANYBODY - OF_EACH == CASES.keys()
    assert not any("/admin/" in name for name in TRAFFIC)


async def do(
    served: Served, name: str, headers: dict[str, str] | None = None, token: str | None = None
) -> httpx.Response:
    """Make the request of a case."""
    case, method = CASES[name], name.split(maxsplit=1)[0]
    path = case.path if case.before is None else case.path.format(await case.before(served))
    url = path if name in PAGES else PREFIX + path
    if headers is None:
        headers = {"authorization": f"Bearer {token or served.operator}"}
    return await served.client.request(method, url, json=case.json, headers=headers)


@pytest.mark.parametrize("name", CASES)
async def test_a_route_that_manages_something_leaves_one_entry(served: Served, name: str) -> None:
    case = CASES[name]
    answer = await do(served, name, await served.link() if case.by_person else None)
    assert answer.status_code in (200, 201, 204, 303), answer.text
    entries = [one for one in await acts(served) if one["request_id"] == answer.headers["x-request-id"]]
    (entry,) = entries
    assert entry["action"] == case.action
    assert (entry["address"], entry["name"]) == ("127.0.0.1", "Operator" if case.by_person else "the first operator")
    if answer.content and not name.startswith("DELETE") and case.action not in ("link.created", "keys.purged"):
        shown = {name: value for name, value in answer.json().items() if name not in ("token", "secret")}
        if case.action == "type.paused":  # The entry itself says which type, and since when.
            shown = {"by": shown["by"]}
        assert entry["after"] == shown.get("body", shown)


@pytest.mark.parametrize("name", CASES)
async def test_a_request_that_is_refused_leaves_none(served: Served, name: str) -> None:
    token = await served.token(Grant(action="jobs.read"), Grant(action="admin.audit"))
    answer = await do(served, name, token=token)
    assert answer.status_code == 403
    assert [one for one in await acts(served) if one["request_id"] == answer.headers["x-request-id"]] == []


# -- who, and from where ------------------------------------------------------------------------------------


async def test_who_did_it_is_told_by_id_and_as_people_know_them(served: Served) -> None:
    made = await served.ingot.credentials.create_token(
        served.ingot.default_tenant.id, description="Ada's laptop", grants=[Grant(action="jobs.manage")]
    )
    headers = {"x-request-id": "r-17"}
    await served.call("PUT", "/pauses/greet", token=made.text, headers=headers)
    (entry,) = await acts(served, "action=type.paused")
    assert (entry["who"], entry["name"]) == (f"token:{made.token.id}", "Ada's laptop")
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
async def test_only_a_trusted_proxy_is_believed_about_the_address(
    tmp_path: Path, trusted: tuple[str, ...], sent: str, address: str
) -> None:
    async with serving(tmp_path / "data", Settings(trusted_proxies=trusted)) as served:
        await served.call("PUT", "/pauses/greet", headers={"x-forwarded-for": sent})
        (entry,) = await acts(served, "action=type.paused")
        assert entry["address"] == address


async def test_the_first_start_is_on_record_as_the_process(served: Served) -> None:
    made = {entry["action"]: entry for entry in await acts(served, "who=process&all=true")}
    assert made["tenant.created"]["target"] == "tenant/default"
    assert (made["token.created"]["tenant"], made["token.created"]["address"]) == (None, None)


async def test_a_worker_that_leaves_by_itself_is_not_on_record(served: Served) -> None:
    made = await served.ingot.credentials.create_worker_credential(served.ingot.default_tenant.id, "press")
    headers = {"x-worker-id": "press/1", "x-worker-secret": made.secret}
    token = await served.token(Grant(action="workers.run"))
    known = await acts(served)

    async def leave(own: str, **who: Any) -> None:
        for name in (own, "press/2"):
            answer = await served.client.post(f"{PREFIX}/workers", json={"id": name, "types": ["greet"]}, **who)
            assert answer.status_code == 201, answer.text
        path = f"{PREFIX}/workers/{own.replace('/', '%2F')}"
        assert (await served.client.post(f"{path}/drain", **who)).status_code == 200
        assert (await served.client.delete(path, **who)).status_code == 204

    await leave("press/1", headers=headers)
    assert await acts(served) == known
    answer = await served.client.post(f"{PREFIX}/workers/press%2F2/drain", headers=headers)
    assert answer.status_code == 200
    entry, *rest = await acts(served)
    assert (rest, entry["who"], entry["name"], entry["target"]) == (known, "worker:press", "press", "worker/press/2")
    body = {"id": "mine", "types": ["greet"]}
    assert (await served.call("POST", "/workers", json=body, token=token)).status_code == 201
    assert (await served.call("DELETE", "/workers/mine", token=token)).status_code == 204
    assert await acts(served) == [entry, *known]


# -- reading ------------------------------------------------------------------------------------------------


async def test_a_tenant_sees_its_own_and_nothing_of_others(served: Served) -> None:
    other = await served.ingot.tenants.create("other")
    own = await served.token(Grant(action="admin.audit"))
    theirs = await served.token(Grant(action="admin.*"), tenant=other.id)
    await served.call("PUT", "/pauses/greet")
    await served.call("PUT", "/admin/definitions/greet", json={"shared": True})
    mine = await acts(served, "", token=own)
    assert [entry["action"] for entry in mine[:1]] == ["type.paused"]
    assert {entry["tenant"] for entry in mine} == {served.ingot.default_tenant.id}
    assert {entry["tenant"] for entry in await acts(served, "", token=theirs)} == {other.id}
    assert await acts(served, "target=type/greet", token=theirs) == []
    assert await acts(served, "", headers={"ingot-tenant": "other"}) == await acts(served, "", token=theirs)
    assert {entry["tenant"] for entry in await acts(served)} == {None, other.id, served.ingot.default_tenant.id}
    answer = await served.call("GET", "/admin/audit?all=true", token=theirs)
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    answer = await served.call("GET", "/admin/audit", token=theirs, headers={"ingot-tenant": "default"})
    assert answer.status_code == 403


async def test_entries_come_in_pages_that_a_filter_narrows(served: Served) -> None:
    for number in range(5):
        await served.call("PUT", f"/pauses/t{number}")
    await served.ingot.jobs.pause(served.ingot.default_tenant.id, "t9")
    who = (await acts(served, "target=type/t0"))[0]["who"]
    found, cursor = [], ""
    for size in (2, 2, 1):
        answer = (await served.call("GET", f"/admin/audit?action=type.paused&who={who}&limit=2{cursor}")).json()
        assert len(answer["items"]) == size
        found += [entry["target"] for entry in answer["items"]]
        cursor = f"&cursor={answer['next_cursor']}"
    assert (found, cursor) == ([f"type/t{number}" for number in range(4, -1, -1)], "&cursor=None")
    first = (await served.call("GET", "/admin/audit?limit=1")).json()["next_cursor"]
    for query in (f"cursor={first}&action=type.paused", f"cursor={first}&all=true", "cursor=x", "limit=0", "after=1"):
        assert (await served.call("GET", f"/admin/audit?{query}")).status_code == 422, query
