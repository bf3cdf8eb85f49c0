"""Credentials: shown once, kept as a digest, and ended for good."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import pytest

from ingot.identity import authenticator as noting
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


class Desk:
    """Credentials, and another server that only recognizes them."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.access = Authenticator(bench.store, bench.clock)
        self.elsewhere = Authenticator(bench.store, bench.clock)
        self.credentials = Credentials(bench.store, self.access, bench.clock)

    async def token(self, **options: object) -> NewToken:
        given = {"description": "a test", "grants": [READ], **options}
        tenant = given.pop("tenant", self.bench.tenant)
        return await self.credentials.create_token(tenant, **given)  # type: ignore[arg-type]


@pytest.fixture
def desk(bench: Bench) -> Desk:
    return Desk(bench)


async def test_a_token_makes_its_caller(desk: Desk) -> None:
    made = await desk.token(limits=TokenLimits(rate=5.0))
    caller = await desk.access.authenticate_token(made.text)
    assert (caller.id, caller.kind, caller.tenant) == (made.token.id, "token", desk.bench.tenant)
    assert (caller.grants, caller.limits.rate, caller.is_operator) == ((READ,), 5.0, False)
    caller.require("jobs.read", "jobs/pdf")
    with pytest.raises(Forbidden):
        caller.require("jobs.read", "jobs/other")


async def test_the_text_is_kept_nowhere(desk: Desk) -> None:
    made = await desk.token()
    (listed,) = (await desk.credentials.list_tokens(desk.bench.tenant)).items
    assert listed == made.token
    assert made.text.endswith(listed.ending)
    assert made.text not in repr(listed)
    found = await desk.bench.store.run(FindToken(token_id=made.token.id))
    assert found is not None
    assert made.text.encode() not in found.digest


async def test_what_is_no_token_makes_nobody(desk: Desk) -> None:
    made = await desk.token()
    other = await desk.token()
    mixed = made.text[:28] + other.text[28:]
    forged = credential_secrets.new_token(made.token.id)
    for text in ("", "ingot_", made.text[:-1], made.text.upper(), made.token.id, mixed, forged):
        with pytest.raises(Unauthorized):
            await desk.access.authenticate_token(text)


async def test_a_revoked_token_is_refused_here_at_once_and_elsewhere_soon(desk: Desk) -> None:
    made = await desk.token()
    for access in (desk.access, desk.elsewhere):
        await access.authenticate_token(made.text)
    revoked = await desk.credentials.revoke_token(desk.bench.tenant, made.token.id)
    assert revoked.revoked_at is not None
    with pytest.raises(Unauthorized):
        await desk.access.authenticate_token(made.text)
    desk.bench.clock.advance(seconds=CREDENTIAL_CACHE_SECONDS)
    with pytest.raises(Unauthorized):
        await desk.elsewhere.authenticate_token(made.text)
    assert CREDENTIAL_CACHE_SECONDS <= 4
    assert await desk.credentials.revoke_token(desk.bench.tenant, made.token.id) == revoked


async def test_a_token_ends_when_it_expires(desk: Desk) -> None:
    made = await desk.token(expires_at=desk.bench.clock.now() + timedelta(seconds=1))
    await desk.access.authenticate_token(made.text)
    desk.bench.clock.advance(seconds=1)
    with pytest.raises(Unauthorized):
        await desk.access.authenticate_token(made.text)


@pytest.mark.parametrize("whose", ["another tenant", "nobody"])
async def test_only_its_tenant_can_revoke_a_token(desk: Desk, whose: str) -> None:
    made = await desk.token()
    other = await desk.bench.tenants.create("other")
    asked = (desk.bench.tenant, new_id()) if whose == "nobody" else (other.id, made.token.id)
    with pytest.raises(TokenNotFound):
        await desk.credentials.revoke_token(*asked)
    await desk.elsewhere.authenticate_token(made.text)


async def test_one_credential_is_shown_to_its_tenant_and_to_who_asks_for_any(desk: Desk) -> None:
    own, other = desk.bench.tenant, (await desk.bench.tenants.create("other")).id
    made, press = await desk.token(), await desk.credentials.create_worker_credential(own, "press")
    for tenant in (own, None):
        assert await desk.credentials.get_token(tenant, made.token.id) == made.token
        assert await desk.credentials.get_worker_credential(tenant, "press") == press.credential
    for tenant, token_id, worker_id in ((other, made.token.id, "press"), (own, new_id(), "x"), (own, "x", "../x")):
        with pytest.raises(TokenNotFound):
            await desk.credentials.get_token(tenant, token_id)
        with pytest.raises(CredentialNotFound):
            await desk.credentials.get_worker_credential(tenant, worker_id)


async def test_a_caller_gives_only_what_it_has(desk: Desk) -> None:
    admin = await desk.token(grants=[Grant(action="admin.tokens"), Grant(action="jobs.*", resource="jobs/pdf")])
    caller = await desk.access.authenticate_token(admin.text)
    made = await desk.token(caller=caller)
    assert made.token.created_by == f"token:{admin.token.id}"
    for grant in (GRANT_ALL, Grant(action="jobs.read"), Grant(action="jobs.*", resource="jobs/other")):
        with pytest.raises(Forbidden):
            await desk.token(grants=[grant], caller=caller)
    with pytest.raises(Forbidden):
        await desk.token(tenant=None, caller=caller)
    assert len((await desk.credentials.list_tokens(desk.bench.tenant)).items) == 2


async def test_the_first_operator_is_made_once(desk: Desk) -> None:
    first = await desk.credentials.ensure_operator_token(None)
    assert first is not None
    caller = await desk.access.authenticate_token(first.text)
    assert caller.is_operator
    assert caller.may("admin.tenants")
    assert await desk.credentials.ensure_operator_token(None) is None
    assert await desk.credentials.ensure_operator_token(first.text) is None
    with pytest.raises(InvalidInput):
        await desk.credentials.ensure_operator_token("secret")


async def test_tokens_are_listed_in_pages_newest_first(desk: Desk) -> None:
    made = [(await desk.token(description=f"number {n}")).token.id for n in range(5)]
    other = await desk.bench.tenants.create("other")
    await desk.token(tenant=other.id)
    first = await desk.credentials.list_tokens(desk.bench.tenant, limit=3)
    rest = await desk.credentials.list_tokens(desk.bench.tenant, cursor=first.next_cursor, limit=3)
    assert [token.id for token in [*first.items, *rest.items]] == made[::-1]
    assert rest.next_cursor is None
    with pytest.raises(InvalidInput):
        await desk.credentials.list_tokens(other.id, cursor=first.next_cursor)


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
async def test_a_token_that_cannot_be_is_refused(desk: Desk, bad: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        await desk.token(**bad)
    with pytest.raises(InvalidInput):
        await desk.token(expires_at=desk.bench.clock.now())
    with pytest.raises(TenantNotFound):
        await desk.token(tenant=new_id())
    assert (await desk.credentials.list_tokens(desk.bench.tenant)).items == []


async def test_the_latest_use_is_remembered(desk: Desk) -> None:
    token = await desk.token()
    worker = await desk.credentials.create_worker_credential(None, "press")
    for at in (5, 9, 7):
        await desk.bench.store.run(RecordLastUsed(tokens={token.token.id: at, new_id(): at}, workers={"press": at}))
    (listed,) = (await desk.credentials.list_tokens(desk.bench.tenant)).items
    (known,) = (await desk.credentials.list_worker_credentials(None)).items
    assert listed == msgspec.structs.replace(token.token, last_used_at=to_datetime(9))
    assert known == msgspec.structs.replace(worker.credential, last_used_at=to_datetime(9))


async def test_the_store_is_not_asked_for_what_nobody_can_have_made(desk: Desk) -> None:
    made = await desk.token()
    asked: list[str] = []
    for text in ("", "ingot_", made.text[:-1], made.text.swapcase(), made.text[:-1] + "é", "ingot_" + "A" * 71):
        with pytest.raises(Unauthorized):
            await desk.access.authenticate_token(text, lambda: asked.append("token"))
        with pytest.raises(Unauthorized):
            await desk.access.authenticate_worker("press", text, lambda: asked.append("worker"))
    assert asked == []
    for _ in range(2):
        await desk.access.authenticate_token(made.text, lambda: asked.append("token"))
    assert asked == ["token"]


async def test_a_use_is_shown_once_the_round_has_come(desk: Desk) -> None:
    usage = LastUsedRecorder(desk.bench.store, desk.access)
    token, unused = await desk.token(), await desk.token()
    worker = await desk.credentials.create_worker_credential(None, "press")
    desk.bench.clock.advance(seconds=60)
    await desk.access.authenticate_token(token.text)
    await desk.access.authenticate_worker("press/host.1", worker.secret)
    with pytest.raises(Unauthorized):
        await desk.access.authenticate_token(credential_secrets.new_token(unused.token.id))
    at = desk.bench.clock.now()
    await usage.run_once()
    tokens = {one.id: one.last_used_at for one in (await desk.credentials.list_tokens(desk.bench.tenant)).items}
    assert tokens == {token.token.id: at, unused.token.id: None}
    (known,) = (await desk.credentials.list_worker_credentials(None)).items
    assert known.last_used_at == at
    assert await usage.run_once() == RecordLastUsed(tokens={}, workers={})


async def test_a_use_is_not_forgotten_when_the_server_stops(desk: Desk) -> None:
    usage = LastUsedRecorder(desk.bench.store, desk.access)
    usage.start()
    token = await desk.token()
    await desk.access.authenticate_token(token.text)
    await usage.stop()
    (listed,) = (await desk.credentials.list_tokens(desk.bench.tenant)).items
    assert listed.last_used_at is not None


async def test_what_is_kept_of_uses_is_bounded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noting, "USED_CREDENTIALS_MAX", 2)
    tokens = [await desk.token() for _ in range(3)]
    for token in tokens:
        await desk.access.authenticate_token(token.text)
    desk.bench.clock.advance(seconds=1)
    await desk.access.authenticate_token(tokens[0].text)
    used = desk.access.take_last_used().tokens
    assert list(used) == [token.token.id for token in tokens[:2]]
    assert used[tokens[0].token.id] == desk.bench.clock.micros()


# -- workers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
async def test_a_worker_proves_itself_with_its_secret(desk: Desk, shared: bool) -> None:
    tenant = None if shared else desk.bench.tenant
    made = await desk.credentials.create_worker_credential(tenant, "press-1", types=["pdf"])
    for worker_id in ("press-1", "press-1/host.7.abc"):
        caller = await desk.access.authenticate_worker(worker_id, made.secret)
        assert (caller.id, caller.kind, caller.tenant, caller.types) == ("press-1", "worker", tenant, ("pdf",))
        assert caller.may("workers.run")
        assert not caller.may("jobs.create")
        assert not caller.is_operator
    other = await desk.credentials.create_worker_credential(tenant, "press-2")
    for worker_id, secret in (("press-2", made.secret), ("press-1", other.secret), ("press", made.secret), ("", "")):
        with pytest.raises(Unauthorized):
            await desk.access.authenticate_worker(worker_id, secret)
    assert (await desk.credentials.list_worker_credentials(tenant)).items == [made.credential, other.credential]


async def test_a_disabled_worker_is_out_until_it_is_enabled(desk: Desk) -> None:
    made = await desk.credentials.create_worker_credential(desk.bench.tenant, "press")
    await desk.access.authenticate_worker("press", made.secret)
    disabled = await desk.credentials.enable_worker_credential(desk.bench.tenant, "press", enabled=False)
    assert not disabled.enabled
    with pytest.raises(Unauthorized):
        await desk.access.authenticate_worker("press", made.secret)
    await desk.credentials.enable_worker_credential(desk.bench.tenant, "press", enabled=True)
    await desk.access.authenticate_worker("press", made.secret)


async def test_a_new_secret_ends_the_old_one(desk: Desk) -> None:
    old = await desk.credentials.create_worker_credential(None, "press")
    new = await desk.credentials.regenerate_worker_credential(None, "press")
    assert new.secret != old.secret
    assert new.credential.regenerated_at is not None
    assert new.secret.endswith(new.credential.ending)
    await desk.access.authenticate_worker("press", new.secret)
    with pytest.raises(Unauthorized):
        await desk.access.authenticate_worker("press", old.secret)


async def test_a_new_secret_is_for_who_may_run_what_its_workers_may(desk: Desk) -> None:
    """Otherwise who looks after credentials would take the place of a worker."""
    tenant = desk.bench.tenant
    for id, types in (("press", ["pdf"]), ("all", [])):
        await desk.credentials.create_worker_credential(tenant, id, types=types)
    keeper = await desk.token(grants=[Grant(action="admin.workers")])
    printer = await desk.token(grants=[Grant(action="workers.run", resource="jobs/pdf")])
    by = [await desk.access.authenticate_token(one.text) for one in (keeper, printer)]
    for caller, id in ((by[0], "press"), (by[0], "all"), (by[1], "all")):
        with pytest.raises(Forbidden):
            await desk.credentials.regenerate_worker_credential(tenant, id, caller=caller)
    await desk.credentials.regenerate_worker_credential(tenant, "press", caller=by[1])
    other = await desk.bench.tenants.create("other")
    with pytest.raises(CredentialNotFound):
        await desk.credentials.regenerate_worker_credential(other.id, "press", caller=by[0])


async def test_a_worker_id_is_taken_once_in_all_tenants(desk: Desk) -> None:
    await desk.credentials.create_worker_credential(desk.bench.tenant, "press")
    other = await desk.bench.tenants.create("other")
    for tenant in (desk.bench.tenant, other.id, None):
        with pytest.raises(CredentialExists):
            await desk.credentials.create_worker_credential(tenant, "press")
    with pytest.raises(CredentialNotFound):
        await desk.credentials.enable_worker_credential(other.id, "press", enabled=False)
    with pytest.raises(CredentialNotFound):
        await desk.credentials.regenerate_worker_credential(desk.bench.tenant, "nobody")


async def test_a_worker_id_that_cannot_be_is_refused(desk: Desk) -> None:
    ids: list[Any] = ["", "a b", "a/b", "x" * 65, "-a", "é", 7]
    create: Any = partial(desk.credentials.create_worker_credential, desk.bench.tenant)
    calls = {repr(bad): partial(create, bad) for bad in ids}
    await refuses_each(desk.bench, InvalidInput, {**calls, "types in one text": partial(create, "press", types="pdf")})
