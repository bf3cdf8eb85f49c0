"""Credentials: shown once, stored as a digest, and revoked permanently."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import pytest

from ingot.identity import authenticator as last_used_store
from ingot.identity import credential_secrets
from ingot.identity.authenticator import CREDENTIAL_CACHE_SECONDS, Authenticator
from ingot.identity.credential_service import Credentials, NewToken
from ingot.identity.credentials import (
    CredentialExists,
    CredentialNotFound,
    Forbidden,
    TokenLimits,
    TokenNotFound,
    Unauthorized,
)
from ingot.identity.grants import GRANT_ALL, Grant
from ingot.identity.last_used import LastUsedRecorder
from ingot.identity.model import TenantNotFound
from ingot.identity.ports import FindToken, RecordLastUsed
from ingot.kernel.clock import to_datetime
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import new_id
from tests.conformance.snapshots import refuses_each
from tests.factories import Bench

READ = Grant(action="jobs.read", resource="jobs/pdf")


class CredentialsFixture:
    """Credentials, and a second server that only authenticates them."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.authenticator = Authenticator(bench.store, bench.clock)
        self.other_authenticator = Authenticator(bench.store, bench.clock)
        self.credentials = Credentials(bench.store, self.authenticator, bench.clock)

    async def token(self, **options: object) -> NewToken:
        values = {"description": "a test", "grants": [READ], **options}
        tenant = values.pop("tenant", self.bench.tenant)
        return await self.credentials.create_token(tenant, **values)  # type: ignore[arg-type]


@pytest.fixture
def server(bench: Bench) -> CredentialsFixture:
    return CredentialsFixture(bench)


async def test_a_token_authenticates_its_caller(server: CredentialsFixture) -> None:
    created = await server.token(limits=TokenLimits(rate=5.0))
    caller = await server.authenticator.authenticate_token(created.text)
    assert (caller.id, caller.kind, caller.tenant) == (created.token.id, "token", server.bench.tenant)
    assert (caller.grants, caller.limits.rate, caller.is_operator) == ((READ,), 5.0, False)
    caller.require("jobs.read", "jobs/pdf")
    with pytest.raises(Forbidden):
        caller.require("jobs.read", "jobs/other")


async def test_the_text_of_a_token_is_not_stored(server: CredentialsFixture) -> None:
    created = await server.token()
    (listed,) = (await server.credentials.list_tokens(server.bench.tenant)).items
    assert listed == created.token
    assert created.text.endswith(listed.ending)
    assert created.text not in repr(listed)
    found = await server.bench.store.run(FindToken(token_id=created.token.id))
    assert found is not None
    assert created.text.encode() not in found.digest


async def test_invalid_token_texts_are_unauthorized(server: CredentialsFixture) -> None:
    created = await server.token()
    other = await server.token()
    mixed = created.text[:28] + other.text[28:]
    forged = credential_secrets.new_token(created.token.id)
    for text in ("", "ingot_", created.text[:-1], created.text.upper(), created.token.id, mixed, forged):
        with pytest.raises(Unauthorized):
            await server.authenticator.authenticate_token(text)


async def test_a_revoked_token_is_refused_at_once_and_on_other_servers_within_the_cache_time(
    server: CredentialsFixture,
) -> None:
    created = await server.token()
    for authenticator in (server.authenticator, server.other_authenticator):
        await authenticator.authenticate_token(created.text)
    revoked = await server.credentials.revoke_token(server.bench.tenant, created.token.id)
    assert revoked.revoked_at is not None
    with pytest.raises(Unauthorized):
        await server.authenticator.authenticate_token(created.text)
    server.bench.clock.advance(seconds=CREDENTIAL_CACHE_SECONDS)
    with pytest.raises(Unauthorized):
        await server.other_authenticator.authenticate_token(created.text)
    assert CREDENTIAL_CACHE_SECONDS <= 4
    assert await server.credentials.revoke_token(server.bench.tenant, created.token.id) == revoked


async def test_an_expired_token_is_refused(server: CredentialsFixture) -> None:
    created = await server.token(expires_at=server.bench.clock.now() + timedelta(seconds=1))
    await server.authenticator.authenticate_token(created.text)
    server.bench.clock.advance(seconds=1)
    with pytest.raises(Unauthorized):
        await server.authenticator.authenticate_token(created.text)


@pytest.mark.parametrize("whose", ["another tenant", "nobody"])
async def test_a_token_cannot_be_revoked_by_another_tenant(server: CredentialsFixture, whose: str) -> None:
    created = await server.token()
    other = await server.bench.tenants.create("other")
    arguments = (server.bench.tenant, new_id()) if whose == "nobody" else (other.id, created.token.id)
    with pytest.raises(TokenNotFound):
        await server.credentials.revoke_token(*arguments)
    await server.other_authenticator.authenticate_token(created.text)


async def test_a_credential_can_be_read_with_its_tenant_or_without_a_tenant(server: CredentialsFixture) -> None:
    own, other = server.bench.tenant, (await server.bench.tenants.create("other")).id
    created, press = await server.token(), await server.credentials.create_worker_credential(own, "press")
    for tenant in (own, None):
        assert await server.credentials.get_token(tenant, created.token.id) == created.token
        assert await server.credentials.get_worker_credential(tenant, "press") == press.credential
    for tenant, token_id, worker_id in ((other, created.token.id, "press"), (own, new_id(), "x"), (own, "x", "../x")):
        with pytest.raises(TokenNotFound):
            await server.credentials.get_token(tenant, token_id)
        with pytest.raises(CredentialNotFound):
            await server.credentials.get_worker_credential(tenant, worker_id)


async def test_a_caller_can_grant_only_what_it_holds(server: CredentialsFixture) -> None:
    admin = await server.token(grants=[Grant(action="admin.tokens"), Grant(action="jobs.*", resource="jobs/pdf")])
    caller = await server.authenticator.authenticate_token(admin.text)
    created = await server.token(caller=caller)
    assert created.token.created_by == f"token:{admin.token.id}"
    for grant in (GRANT_ALL, Grant(action="jobs.read"), Grant(action="jobs.*", resource="jobs/other")):
        with pytest.raises(Forbidden):
            await server.token(grants=[grant], caller=caller)
    with pytest.raises(Forbidden):
        await server.token(tenant=None, caller=caller)
    assert len((await server.credentials.list_tokens(server.bench.tenant)).items) == 2


async def test_the_first_operator_token_is_created_once(server: CredentialsFixture) -> None:
    first = await server.credentials.ensure_operator_token(None)
    assert first is not None
    caller = await server.authenticator.authenticate_token(first.text)
    assert caller.is_operator
    assert caller.may("admin.tenants")
    assert await server.credentials.ensure_operator_token(None) is None
    assert await server.credentials.ensure_operator_token(first.text) is None
    with pytest.raises(InvalidInput):
        await server.credentials.ensure_operator_token("secret")


async def test_tokens_are_listed_in_pages_newest_first(server: CredentialsFixture) -> None:
    created = [(await server.token(description=f"number {n}")).token.id for n in range(5)]
    other = await server.bench.tenants.create("other")
    await server.token(tenant=other.id)
    first = await server.credentials.list_tokens(server.bench.tenant, limit=3)
    rest = await server.credentials.list_tokens(server.bench.tenant, cursor=first.next_cursor, limit=3)
    assert [token.id for token in [*first.items, *rest.items]] == created[::-1]
    assert rest.next_cursor is None
    with pytest.raises(InvalidInput):
        await server.credentials.list_tokens(other.id, cursor=first.next_cursor)


@pytest.mark.parametrize(
    "bad",
    [
        {"description": ""},
        {"description": "x" * 201},
        {"grants": []},
        {"limits": TokenLimits(rate=-1.0)},
        {"limits": TokenLimits(burst=0)},
    ],
)
async def test_invalid_token_options_are_refused(server: CredentialsFixture, bad: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        await server.token(**bad)
    with pytest.raises(InvalidInput):
        await server.token(expires_at=server.bench.clock.now())
    with pytest.raises(TenantNotFound):
        await server.token(tenant=new_id())
    assert (await server.credentials.list_tokens(server.bench.tenant)).items == []


async def test_the_latest_use_is_recorded(server: CredentialsFixture) -> None:
    token = await server.token()
    worker = await server.credentials.create_worker_credential(None, "press")
    for at in (5, 9, 7):
        await server.bench.store.run(RecordLastUsed(tokens={token.token.id: at, new_id(): at}, workers={"press": at}))
    (listed,) = (await server.credentials.list_tokens(server.bench.tenant)).items
    (credential,) = (await server.credentials.list_worker_credentials(None)).items
    assert listed == msgspec.structs.replace(token.token, last_used_at=to_datetime(9))
    assert credential == msgspec.structs.replace(worker.credential, last_used_at=to_datetime(9))


async def test_malformed_credentials_do_not_reach_the_store(server: CredentialsFixture) -> None:
    created = await server.token()
    lookups: list[str] = []
    for text in (
        "",
        "ingot_",
        created.text[:-1],
        created.text.swapcase(),
        created.text[:-1] + "é",
        "ingot_" + "A" * 71,
    ):
        with pytest.raises(Unauthorized):
            await server.authenticator.authenticate_token(text, lambda: lookups.append("token"))
        with pytest.raises(Unauthorized):
            await server.authenticator.authenticate_worker("press", text, lambda: lookups.append("worker"))
    assert lookups == []
    for _ in range(2):
        await server.authenticator.authenticate_token(created.text, lambda: lookups.append("token"))
    assert lookups == ["token"]


async def test_a_use_is_visible_after_the_recorder_has_run(server: CredentialsFixture) -> None:
    usage = LastUsedRecorder(server.bench.store, server.authenticator)
    token, unused = await server.token(), await server.token()
    worker = await server.credentials.create_worker_credential(None, "press")
    server.bench.clock.advance(seconds=60)
    await server.authenticator.authenticate_token(token.text)
    await server.authenticator.authenticate_worker("press/host.1", worker.secret)
    with pytest.raises(Unauthorized):
        await server.authenticator.authenticate_token(credential_secrets.new_token(unused.token.id))
    at = server.bench.clock.now()
    await usage.run_once()
    tokens = {one.id: one.last_used_at for one in (await server.credentials.list_tokens(server.bench.tenant)).items}
    assert tokens == {token.token.id: at, unused.token.id: None}
    (credential,) = (await server.credentials.list_worker_credentials(None)).items
    assert credential.last_used_at == at
    assert await usage.run_once() == RecordLastUsed(tokens={}, workers={})


async def test_a_use_is_recorded_when_the_server_stops(server: CredentialsFixture) -> None:
    usage = LastUsedRecorder(server.bench.store, server.authenticator)
    usage.start()
    token = await server.token()
    await server.authenticator.authenticate_token(token.text)
    await usage.stop()
    (listed,) = (await server.credentials.list_tokens(server.bench.tenant)).items
    assert listed.last_used_at is not None


async def test_the_number_of_remembered_uses_is_limited(
    server: CredentialsFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_used_store, "USED_CREDENTIALS_MAX", 2)
    tokens = [await server.token() for _ in range(3)]
    for token in tokens:
        await server.authenticator.authenticate_token(token.text)
    server.bench.clock.advance(seconds=1)
    await server.authenticator.authenticate_token(tokens[0].text)
    used = server.authenticator.take_last_used().tokens
    assert list(used) == [token.token.id for token in tokens[:2]]
    assert used[tokens[0].token.id] == server.bench.clock.micros()


# -- workers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
async def test_a_worker_authenticates_with_its_secret(server: CredentialsFixture, shared: bool) -> None:
    tenant = None if shared else server.bench.tenant
    created = await server.credentials.create_worker_credential(tenant, "press-1", types=["pdf"])
    for worker_id in ("press-1", "press-1/host.7.abc"):
        caller = await server.authenticator.authenticate_worker(worker_id, created.secret)
        assert (caller.id, caller.kind, caller.tenant, caller.types) == ("press-1", "worker", tenant, ("pdf",))
        assert caller.may("workers.run")
        assert not caller.may("jobs.create")
        assert not caller.is_operator
    other = await server.credentials.create_worker_credential(tenant, "press-2")
    for worker_id, secret in (
        ("press-2", created.secret),
        ("press-1", other.secret),
        ("press", created.secret),
        ("", ""),
    ):
        with pytest.raises(Unauthorized):
            await server.authenticator.authenticate_worker(worker_id, secret)
    assert (await server.credentials.list_worker_credentials(tenant)).items == [created.credential, other.credential]


async def test_a_disabled_worker_credential_is_refused_until_it_is_enabled(server: CredentialsFixture) -> None:
    created = await server.credentials.create_worker_credential(server.bench.tenant, "press")
    await server.authenticator.authenticate_worker("press", created.secret)
    disabled = await server.credentials.enable_worker_credential(server.bench.tenant, "press", enabled=False)
    assert not disabled.enabled
    with pytest.raises(Unauthorized):
        await server.authenticator.authenticate_worker("press", created.secret)
    await server.credentials.enable_worker_credential(server.bench.tenant, "press", enabled=True)
    await server.authenticator.authenticate_worker("press", created.secret)


async def test_a_new_secret_ends_the_old_one(server: CredentialsFixture) -> None:
    old = await server.credentials.create_worker_credential(None, "press")
    new = await server.credentials.regenerate_worker_credential(None, "press")
    assert new.secret != old.secret
    assert new.credential.regenerated_at is not None
    assert new.secret.endswith(new.credential.ending)
    await server.authenticator.authenticate_worker("press", new.secret)
    with pytest.raises(Unauthorized):
        await server.authenticator.authenticate_worker("press", old.secret)


async def test_a_new_secret_requires_the_grants_of_the_worker(server: CredentialsFixture) -> None:
    """Otherwise an administrator of credentials could act as a worker."""
    tenant = server.bench.tenant
    for id, types in (("press", ["pdf"]), ("all", [])):
        await server.credentials.create_worker_credential(tenant, id, types=types)
    admin = await server.token(grants=[Grant(action="admin.workers")])
    runner = await server.token(grants=[Grant(action="workers.run", resource="jobs/pdf")])
    by = [await server.authenticator.authenticate_token(one.text) for one in (admin, runner)]
    for caller, id in ((by[0], "press"), (by[0], "all"), (by[1], "all")):
        with pytest.raises(Forbidden):
            await server.credentials.regenerate_worker_credential(tenant, id, caller=caller)
    await server.credentials.regenerate_worker_credential(tenant, "press", caller=by[1])
    other = await server.bench.tenants.create("other")
    with pytest.raises(CredentialNotFound):
        await server.credentials.regenerate_worker_credential(other.id, "press", caller=by[0])


async def test_a_worker_id_is_unique_across_tenants(server: CredentialsFixture) -> None:
    await server.credentials.create_worker_credential(server.bench.tenant, "press")
    other = await server.bench.tenants.create("other")
    for tenant in (server.bench.tenant, other.id, None):
        with pytest.raises(CredentialExists):
            await server.credentials.create_worker_credential(tenant, "press")
    with pytest.raises(CredentialNotFound):
        await server.credentials.enable_worker_credential(other.id, "press", enabled=False)
    with pytest.raises(CredentialNotFound):
        await server.credentials.regenerate_worker_credential(server.bench.tenant, "nobody")


async def test_invalid_worker_ids_are_refused(server: CredentialsFixture) -> None:
    ids: list[Any] = ["", "a b", "a/b", "x" * 65, "-a", "é", 7]
    create: Any = partial(server.credentials.create_worker_credential, server.bench.tenant)
    calls = {repr(bad): partial(create, bad) for bad in ids}
    await refuses_each(
        server.bench, InvalidInput, {**calls, "types in one text": partial(create, "press", types="pdf")}
    )
