"""Secrets: used by name, encrypted, and never shown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_hex

import pytest

from ingot.engines.sqlite.store_folder import FILE_NAME
from ingot.identity.grants import Grant
from ingot.identity.secret_values import NewSecret, Rotated, Secrets, SecretUnreadable
from ingot.settings import Settings
from ingot.wiring import services
from tests.http.serving import Served, serving

VALUE = "correct horse battery staple"
BOTH = {"mail": VALUE, "shop": "other"}


async def put_both(served: Served) -> None:
    for name, value in BOTH.items():
        response = await served.call("PUT", f"/secrets/{name}", json={"value": value})
        assert (response.status_code, response.json()["version"]) == (200, 1)


async def test_a_secret_value_is_in_no_response_log_or_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async with serving(tmp_path) as served:
        await put_both(served)
        tenant = served.ingot.default_tenant.id
        assert await served.ingot.secrets.reveal(tenant, "mail") == VALUE
        responses = [
            await served.call("PUT", "/secrets/mail", json={"value": VALUE}),
            await served.call("PUT", "/secrets/mail", json={"value": VALUE, "more": 1}),
            await served.call("PUT", "/secrets/mail?if_version=9", json={"value": VALUE}),
            await served.call("GET", "/secrets/mail"),
            await served.call("GET", "/secrets"),
            await served.call("GET", "/admin/audit"),
            await served.call("DELETE", "/secrets/shop"),
        ]
        assert [response.status_code for response in responses] == [200, 422, 409, 200, 200, 200, 200]
        listed = [(secret["name"], secret["version"]) for secret in responses[4].json()["items"]]
        assert listed == [("mail", 2), ("shop", 1)]
        assert [entry["action"] for entry in responses[5].json()["items"][:3]] == ["secret.put"] * 3
        assert not any("horse" in response.text or "staple" in str(response.headers) for response in responses)
    file_content = (tmp_path / FILE_NAME).read_bytes()
    assert b"mail" in file_content
    assert b"horse" not in file_content
    assert "horse" not in caplog.text + "".join(capfd.readouterr())


async def test_an_invalid_secret_is_rejected_and_changes_nothing(served: Served) -> None:
    await put_both(served)
    cases = [
        ("mail", {"value": ""}, 422, "value"),
        ("mail", {"value": "x" * 65_537}, 422, "value"),
        ("mail", {"value": 7}, 422, "value"),
        ("mail", {"value": "\0"}, 422, "value"),
        ("mail", {}, 422, "value"),
        ("a%2Fb", {"value": "x"}, 422, "name"),
        ("mail?if_version=-1", {"value": "x"}, 422, "if_version"),
        ("mail?if_version=null", {"value": "x"}, 422, "if_version"),
        ("mail?if_version=0", {"value": "x"}, 409, "1"),
    ]
    for path, body, status, mentioned in cases:
        response = await served.call("PUT", f"/secrets/{path}", json=body)
        assert (response.status_code, mentioned in response.json()["detail"]) == (status, True), response.text
    assert (await served.call("DELETE", "/secrets/mail?if_version=3")).json()["version"] == 1
    assert [secret["version"] for secret in (await served.call("GET", "/secrets")).json()["items"]] == [1, 1]


async def test_a_grant_for_one_secret_permits_only_that_secret(served: Served) -> None:
    await put_both(served)
    reader = await served.token(Grant(action="secrets.read", resource="secrets/mail"))
    writer = await served.token(Grant(action="secrets.write", resource="secrets/mail"))
    mail = Grant(action="secrets.write", resource="secrets/mail")
    narrow = (await served.ingot.credentials.create_token(None, description="x", grants=[mail])).text
    other = await served.token(tenant=(await served.ingot.tenants.create("other")).id)
    for limit in (1, 50):
        page = (await served.call("GET", f"/secrets?limit={limit}", token=reader)).json()
        assert ([secret["name"] for secret in page["items"]], page["next_cursor"]) == (["mail"], None)
    assert (await served.call("GET", "/secrets?prefix=shop&limit=1", token=reader)).json()["next_cursor"] is None
    for token, method, path, status in (
        (reader, "GET", "/secrets/mail", 200),
        (reader, "GET", "/secrets/shop", 403),
        (reader, "PUT", "/secrets/mail", 403),
        (reader, "DELETE", "/secrets/mail", 403),
        (writer, "GET", "/secrets/mail", 403),
        (writer, "PUT", "/secrets/shop", 403),
        (writer, "PUT", "/secrets/mail", 200),
        (writer, "POST", "/admin/secrets/rotate-key", 403),
        (narrow, "POST", "/admin/secrets/rotate-key", 403),
        (other, "GET", "/secrets/mail", 404),
        (other, "DELETE", "/secrets/mail", 404),
        (other, "POST", "/admin/secrets/rotate-key", 403),
        (None, "POST", "/admin/secrets/rotate-key", 200),
    ):
        body = {"json": {"value": "x"}} if method == "PUT" else {}
        response = await served.call(method, path, token=token, **body)
        assert response.status_code == status, f"{method} {path}: {response.text}"
    assert (await served.call("GET", "/secrets", token=other)).json()["items"] == []


@asynccontextmanager
async def open_secrets(folder: Path, key: str) -> AsyncIterator[tuple[Secrets, str]]:
    """The secrets of a store opened with this secret key, and its default tenant."""
    async with services.open(settings=Settings(data=folder, secret_key=key), maintenance=False) as ingot:
        yield ingot.secrets, ingot.default_tenant.id


async def test_after_a_rotation_secrets_are_readable_without_the_old_key(tmp_path: Path) -> None:
    first, second = token_hex(32), token_hex(32)
    async with open_secrets(tmp_path, first) as (secrets, tenant):
        for name, value in BOTH.items():
            await secrets.write(tenant, name, NewSecret(value=value))
        old = secrets.key_id
    async with open_secrets(tmp_path, second) as (secrets, tenant):
        assert await secrets.rotate(tenant) == Rotated(key_id=secrets.key_id, rotated=0, unreadable=2)
        with pytest.raises(SecretUnreadable):
            await secrets.reveal(tenant, "mail")
    async with open_secrets(tmp_path, f"{second},{first}") as (secrets, tenant):
        assert await secrets.reveal(tenant, "mail") == VALUE
        assert await secrets.rotate(tenant) == Rotated(key_id=secrets.key_id, rotated=2, unreadable=0)
        assert {(await secrets.get(tenant, name)).version for name in BOTH} == {2}
        assert await secrets.rotate(tenant) == Rotated(key_id=secrets.key_id, rotated=0, unreadable=0)
    async with open_secrets(tmp_path, second) as (secrets, tenant):
        assert {name: await secrets.reveal(tenant, name) for name in BOTH} == BOTH
        assert old not in {secret.body.key_id for secret in await secrets.all(tenant)}


async def test_a_sealed_value_cannot_be_read_under_another_name(tmp_path: Path) -> None:
    async with services.open(tmp_path, maintenance=False) as ingot:
        secrets, tenant = ingot.secrets, ingot.default_tenant.id
        for name, value in BOTH.items():
            await secrets.write(tenant, name, NewSecret(value=value))
        _, stolen = await secrets.get_sealed_value(tenant, "mail")
        await secrets.put(tenant, "shop", (await secrets.get(tenant, "mail")).body, sealed=stolen)
        with pytest.raises(SecretUnreadable):
            await secrets.reveal(tenant, "shop")
