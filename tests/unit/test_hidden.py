"""What holds a secret does not show it, and what looks like one is taken out."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from rich.pretty import pretty_repr

from ingot.identity import secrets
from ingot.identity.credentials import Token, WorkerCredential
from ingot.identity.people import User
from ingot.identity.sessions import Link, Login, SignedIn
from ingot.identity.tokens import NewToken, NewWorkerCredential
from ingot.kernel.errors import InvalidInput
from ingot.kernel.hidden import INSTEAD, hide, is_secret
from ingot.kernel.ids import new_id
from ingot.outbound.asking import Answer
from ingot.outbound.provider import Tokens
from ingot.settings import SECRET, Settings

CANARY = "canary"
NOW = datetime(2027, 1, 31, tzinfo=UTC)
USER = User(issuer="x", subject="x", id="x", created_at=NOW, signed_in_at=NOW)
TOKEN = Token(id="x", tenant=None, description="x", grants=(), ending="abcd", created_at=NOW)
CREDENTIAL = WorkerCredential(id="x", tenant=None, types=(), ending="abcd", created_at=NOW)
HOLDERS: list[Any] = [
    Login(CANARY),
    Link(secret=CANARY, expires_at=NOW),
    SignedIn(user=USER, secret=CANARY),
    NewToken(token=TOKEN, text=CANARY),
    NewWorkerCredential(credential=CREDENTIAL, secret=CANARY),
    Tokens(id_token=CANARY, access_token=CANARY),
    Answer(status=200, body=CANARY.encode()),
]
MADE = [
    secrets.new_token(new_id()),
    secrets.new_secret(secrets.WORKER_PREFIX),
    secrets.new_secret(secrets.SESSION_PREFIX),
    secrets.new_secret(secrets.LOGIN_PREFIX),
]


@pytest.mark.parametrize("one", HOLDERS, ids=lambda one: type(one).__name__)
def test_what_holds_a_secret_does_not_show_it(one: Any) -> None:
    for shown in (repr(one), str(one), f"{[one]}", pretty_repr(one)):
        assert CANARY not in shown
        assert type(one).__name__ in shown


KEY = bytes(range(32)).hex()


def test_settings_show_all_but_what_is_secret() -> None:
    url = f"postgresql://x:{CANARY}@localhost/x"
    given = {**dict.fromkeys(SECRET, CANARY), "database_url": url, "database_owner_url": url}
    given |= {"oidc_issuer": "https://id.example", "oidc_client_id": "ingot", "public_url": "https://x.example"}
    given |= {"secret_key": KEY, "s3_bucket": "blobs", "s3_access_key": "ours"}
    given["otel_endpoint"] = f"http://x:{CANARY}@localhost"
    settings = Settings(**given)  # type: ignore[arg-type]
    for shown in (repr(settings), str(settings), pretty_repr(settings)):
        assert CANARY not in shown
        assert KEY not in shown
        assert "https://id.example" in shown
    assert "operator_token=None" in repr(Settings())


@pytest.mark.parametrize("secret", MADE, ids=lambda secret: secret.partition("_")[0])
def test_each_kind_of_secret_is_taken_out_whole_or_cut(secret: str) -> None:
    for text in (secret, f"x{secret}", f"a {secret} b", f"/jobs/{secret}/log", secret[:40]):
        assert is_secret(text)
        assert secret[:26] not in hide(text)
        assert INSTEAD in hide(text)
    error = InvalidInput(f"there is no {secret}", hint=f"Send no {secret}.")
    assert secret[:26] not in f"{error!r} {error} {error.detail} {error.hint} {error.__notes__}"


@pytest.mark.parametrize(
    "text",
    ["", "ingot", "ingot_server", "ingot_session", "01890000-0000-7000-8000-000000000001", "INGOT_DATABASE_OWNER_URL"],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert not is_secret(text)
    assert hide(text) == text
