"""Tokens in requests: only complete ones in the right header count, for their grants and tenant, and are shown once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from ingot.engines.sqlite.store_folder import FILE_NAME
from ingot.identity import credential_secrets
from ingot.identity.grants import Grant
from ingot.kernel.ids import new_id
from tests.http.one_server import on_one_server
from tests.http.serving import Served

PARTS_CHARS = 6  # No response may contain this many consecutive characters of a secret.


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def with_wrong_checksum(token: str) -> str:
    return token[:-1] + ("0" if token[-1] != "0" else "1")


def with_wrong_character(token: str) -> str:
    return token[:40] + ("a" if token[40] != "a" else "b") + token[41:]


ALTERATIONS: dict[str, Callable[[str], str]] = {
    "truncated": lambda token: token[:-1],
    "cut in front": lambda token: token[1:],
    "without its prefix": lambda token: token.removeprefix(credential_secrets.TOKEN_PREFIX),
    "in another case": lambda token: token.swapcase(),
    "in upper case": lambda token: token.upper(),
    "with a wrong checksum": with_wrong_checksum,
    "with a wrong character": with_wrong_character,
    "with a suffix": lambda token: f"{token}0",
    "twice": lambda token: f"{token}{token}",
    "only its ID": lambda token: token[:28],
}


@pytest.fixture
def break_store(tmp_path: Path) -> Callable[[], None]:
    """A function that removes the table of tokens."""

    def rename_table() -> None:
        with closing(apsw.Connection(str(tmp_path / "data" / FILE_NAME))) as connection:
            connection.execute("ALTER TABLE tokens RENAME TO elsewhere")

    return rename_table


@pytest.mark.parametrize("alteration", ALTERATIONS)
async def test_an_altered_token_is_rejected_without_a_query(
    served: Served, break_store: Callable[[], None], alteration: str
) -> None:
    token = await served.token()
    assert (await served.client.get("/api/v1/jobs", headers=bearer(token))).status_code == 200
    break_store()
    response = await served.client.get("/api/v1/jobs", headers=bearer(ALTERATIONS[alteration](token)))
    assert (response.status_code, response.json()["code"]) == (401, "unauthorized")
    whole = await served.client.get("/api/v1/jobs", headers=bearer(credential_secrets.new_token(new_id())))
    assert whole.status_code == 500, "a well-formed token causes a query"


async def test_a_forged_token_with_a_valid_id_is_rejected(served: Served) -> None:
    created = await served.ingot.credentials.create_token(
        served.ingot.default_tenant.id, description="x", grants=[Grant(action="*")]
    )
    for wrong in (credential_secrets.new_token(created.token.id), credential_secrets.new_token(new_id())):
        response = await served.client.get("/api/v1/jobs", headers=bearer(wrong))
        assert (response.status_code, response.json()["code"]) == (401, "unauthorized")
        assert response.headers["www-authenticate"] == "Bearer"


@on_one_server("name", ["token", "access_token", "authorization", "bearer", "Authorization"])
async def test_a_token_in_the_query_is_ignored(served: Served, name: str) -> None:
    for value in (served.operator, f"Bearer {served.operator}"):
        for path in ("/api/v1/jobs", "/api/v1/me", "/metrics", "/api/v1/events/stream"):
            response = await served.client.get(path, params={name: value})
            assert response.status_code == 401, path
        posted = await served.client.post("/api/v1/jobs", params={name: value}, json={"type": "noop"})
        assert posted.status_code == 401
    assert (await served.call("GET", f"/jobs?{name}={served.operator}")).status_code == 422


async def test_a_grant_for_tasks_does_not_cover_tasks_private(served: Served) -> None:
    token = await served.token(
        Grant(action="jobs.*", resource="jobs/tasks"), Grant(action="events.*", resource="events/tasks")
    )
    hidden = (await served.call("POST", "/jobs", json={"type": "tasks-private"})).json()["id"]

    async def status(method: str, path: str, **more: Any) -> int:
        return (await served.call(method, path, token=token, **more)).status_code

    for type, listed, created in (("tasks", 200, 201), ("tasks.daily", 200, 201), ("tasks-private", 403, 403)):
        assert await status("GET", f"/jobs?type={type}") == listed, type
        assert await status("GET", f"/jobs/summary?type={type}") == listed, type
        assert await status("POST", "/jobs", json={"type": type}) == created, type
        assert await status("POST", "/events", json={"name": f"{type}.done"}) == created, type
    assert await status("GET", "/jobs") == 403, "a grant for one type does not permit listing all"
    for method, path in (("GET", f"/jobs/{hidden}"), ("POST", f"/jobs/{hidden}/cancel")):
        assert await status(method, path) in (403, 404)
    assert (await served.call("GET", f"/jobs/{hidden}")).json()["status"] == "queued"


async def test_a_token_of_one_tenant_is_rejected_in_another(served: Served) -> None:
    other = await served.ingot.tenants.create("other")
    token = await served.token(tenant=other.id)
    assert (await served.call("GET", "/jobs", token=token)).status_code == 200
    for slug in ("default", served.ingot.default_tenant.id, "nowhere"):
        response = await served.call("GET", "/jobs", token=token, headers={"ingot-tenant": slug})
        assert (response.status_code, response.json()["code"]) == (403, "forbidden")


def parts_of(secret: str, head: int) -> Iterator[str]:
    """Every `PARTS_CHARS` consecutive characters of a secret, without its prefix and its last four."""
    for start in range(head, len(secret) - credential_secrets.ENDING_CHARS - PARTS_CHARS + 1):
        yield secret[start : start + PARTS_CHARS]


async def test_only_the_last_four_characters_of_a_secret_are_shown(served: Served, tmp_path: Path) -> None:
    token = await served.call("POST", "/admin/tokens", json={"description": "x", "grants": [{"action": "jobs.*"}]})
    worker = await served.call("POST", "/admin/workers", json={"id": "press"})
    shown = [
        (token.json()["token"], len(credential_secrets.TOKEN_PREFIX)),
        (worker.json()["secret"], len(credential_secrets.WORKER_PREFIX)),
    ]
    lists = ["/admin/tokens", "/admin/workers", "/admin/audit?all=true", "/admin/tokens?operator=true"]
    texts = [(await served.call("GET", path)).text for path in lists]
    texts += [file.read_bytes().decode("latin-1") for file in (tmp_path / "data").rglob("*") if file.is_file()]
    headers = await served.link()
    texts.append((await served.client.get("/me", headers=headers)).text)
    for secret, head in shown:
        assert f'"{secret[-4:]}"' in "".join(texts[:2])
        for part in parts_of(secret, head):
            assert not [text[:40] for text in texts if part in text]
