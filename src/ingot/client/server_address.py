"""Where the server is, and with what one comes to it."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from ingot.kernel.errors import IngotError, InvalidInput
from ingot.settings import ClientSettings, is_loopback, read_client_settings

TOKEN_FILE: Final = "operator.token"


class NoToken(IngotError):
    """There is no token to come with."""

    code = "no_token"
    status = 401
    hint = (
        "Set INGOT_TOKEN. A worker may have INGOT_WORKER_ID and INGOT_WORKER_SECRET instead, for itself alone. "
        "On the machine of the server its operator.token is found by itself, "
        "when INGOT_DATA names the data folder or it is ./data; `ingot serve` makes both."
    )


class WrongUrl(IngotError):
    """The address of the server is none."""

    code = "wrong_url"
    status = 422
    hint = "Write it as in http://127.0.0.1:8080."


class ServerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A server, and the headers that say who asks."""

    url: str
    headers: dict[str, str]
    has_credentials: bool = True  # Whether there is something to come with.


def resolve_server_address(
    url: str | None = None,
    *,
    token: str | None = None,
    tenant: str | None = None,
    worker: tuple[str, str] | None = None,
    settings: ClientSettings | None = None,
    allow_missing_token: bool = False,
) -> ServerAddress:
    """The server that is meant: what is not given comes from the environment.

    A worker comes with its id and secret, everybody else with a token. Raises `NoToken`, `WrongUrl` or
    `InvalidInput`; with `later` who has no token is told so when they ask for something.
    """
    known = settings or read_client_settings()
    server = (url or known.server_url).rstrip("/")
    parts = _split_url(server)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or parts.path or parts.query:
        raise WrongUrl(f"{server[:100]!r} is no address of a server")
    named = tenant or known.tenant
    if named is not None and not (named.isascii() and named.isprintable()):
        raise InvalidInput(f"{named!r} is no slug of a tenant", hint="`ingot tenants list` has them.")
    headers = {}
    if worker is not None:
        headers = {"x-worker-id": worker[0], "x-worker-secret": worker[1]}
    else:
        found = token or known.token or (_read_operator_token(known.data) if is_loopback(parts.hostname) else None)
        if found is None and not allow_missing_token:
            raise NoToken
        if found is not None and not (found.isascii() and found.isprintable()):
            raise NoToken("what there is for a token has letters in it that no token has")
        headers = {} if found is None else {"authorization": f"Bearer {found}"}
    is_known = bool(headers)
    if named is not None and worker is None:  # The tenants of a worker are those of its credential.
        headers["ingot-tenant"] = named
    return ServerAddress(url=server, headers=headers, has_credentials=is_known)


def _split_url(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        return parts if parts.port != 0 and parts.username is None else None  # A port that is no number raises.
    except ValueError:
        return None


def _read_operator_token(data: Path) -> str | None:
    """The operator's token, where the server of this folder wrote it."""
    try:
        return (data / TOKEN_FILE).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None
