"""Redaction: structs with secrets hide them in their representation, and texts are cleaned of secrets."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from rich.pretty import pretty_repr

from ingot.identity import credential_secrets
from ingot.identity.credential_service import NewToken, NewWorkerCredential
from ingot.identity.credentials import Token, WorkerCredential
from ingot.identity.people import User
from ingot.identity.sessions import Login, NewSession, SignInLink
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import new_id
from ingot.kernel.redaction import REDACTED, contains_secret, redact
from ingot.outbound.bounded_http import ProviderResponse
from ingot.outbound.provider import ProviderTokens
from ingot.settings import SECRET_FIELDS, Settings

CANARY = "canary"
NOW = datetime(2027, 1, 31, tzinfo=UTC)
USER = User(issuer="x", subject="x", id="x", created_at=NOW, signed_in_at=NOW)
TOKEN = Token(id="x", tenant=None, description="x", grants=(), ending="abcd", created_at=NOW)
CREDENTIAL = WorkerCredential(id="x", tenant=None, types=(), ending="abcd", created_at=NOW)
HOLDERS: list[Any] = [
    Login(CANARY),
    SignInLink(secret=CANARY, expires_at=NOW),
    NewSession(user=USER, secret=CANARY),
    NewToken(token=TOKEN, text=CANARY),
    NewWorkerCredential(credential=CREDENTIAL, secret=CANARY),
    ProviderTokens(id_token=CANARY, access_token=CANARY),
    ProviderResponse(status=200, body=CANARY.encode()),
]
SECRETS = [
    credential_secrets.new_token(new_id()),
    credential_secrets.new_secret(credential_secrets.WORKER_PREFIX),
    credential_secrets.new_secret(credential_secrets.SESSION_PREFIX),
    credential_secrets.new_secret(credential_secrets.LOGIN_PREFIX),
]


@pytest.mark.parametrize("holder", HOLDERS, ids=lambda holder: type(holder).__name__)
def test_a_struct_with_a_secret_does_not_show_it(holder: Any) -> None:
    for shown in (repr(holder), str(holder), f"{[holder]}", pretty_repr(holder)):
        assert CANARY not in shown
        assert type(holder).__name__ in shown


KEY = bytes(range(32)).hex()


def test_settings_show_everything_except_secrets() -> None:
    url = f"postgresql://x:{CANARY}@localhost/x"
    options = {**dict.fromkeys(SECRET_FIELDS, CANARY), "database_url": url, "database_owner_url": url}
    options |= {"oidc_issuer": "https://id.example", "oidc_client_id": "ingot", "public_url": "https://x.example"}
    options |= {"secret_key": KEY, "s3_bucket": "blobs", "s3_access_key": "ours"}
    options["otel_endpoint"] = f"http://x:{CANARY}@localhost"
    settings = Settings(**options)  # type: ignore[arg-type]
    for shown in (repr(settings), str(settings), pretty_repr(settings)):
        assert CANARY not in shown
        assert KEY not in shown
        assert "https://id.example" in shown
    assert "operator_token=None" in repr(Settings())


@pytest.mark.parametrize("secret", SECRETS, ids=lambda secret: secret.partition("_")[0])
def test_each_kind_of_secret_is_redacted_even_if_truncated(secret: str) -> None:
    for text in (secret, f"x{secret}", f"a {secret} b", f"/jobs/{secret}/log", secret[:40]):
        assert contains_secret(text)
        assert secret[:26] not in redact(text)
        assert REDACTED in redact(text)
    error = InvalidInput(f"there is no {secret}", hint=f"Send no {secret}.")
    assert secret[:26] not in f"{error!r} {error} {error.detail} {error.hint} {error.__notes__}"


@pytest.mark.parametrize(
    "text",
    ["", "ingot", "ingot_server", "ingot_session", "01890000-0000-7000-8000-000000000001", "INGOT_DATABASE_OWNER_URL"],
)
def test_other_text_is_not_redacted(text: str) -> None:
    assert not contains_secret(text)
    assert redact(text) == text
