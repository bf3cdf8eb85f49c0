"""The URL of a server, with the credentials for it."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from ingot.kernel.errors import IngotError, InvalidInput
from ingot.settings import ClientSettings, is_loopback, read_client_settings

DEFAULT_SERVER_URL: Final = "http://127.0.0.1:8080"
TOKEN_FILE: Final = "operator.token"


class NoToken(IngotError):
    """No token was found."""

    code = "no_token"
    status = 401
    hint = (
        "Set INGOT_TOKEN. A worker can use INGOT_WORKER_ID and INGOT_WORKER_SECRET instead. On the machine of the "
        "server, operator.token is found automatically if the data folder is ./data or INGOT_DATA names it. "
        "`ingot serve` creates both."
    )


class WrongUrl(IngotError):
    """The URL of the server is not valid."""

    code = "wrong_url"
    status = 422
    hint = "Use a URL without a path, such as http://127.0.0.1:8080."


class ServerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The URL of a server, and the headers that authenticate requests to it."""

    url: str
    headers: dict[str, str]
    has_credentials: bool = True


def resolve_server_address(
    url: str | None = None,
    *,
    token: str | None = None,
    tenant: str | None = None,
    worker: tuple[str, str] | None = None,
    settings: ClientSettings | None = None,
    allow_missing_token: bool = False,
) -> ServerAddress:
    """Return the address of a server. Values that are not passed are read from the environment.

    Workers authenticate with their ID and secret, other callers with a token. Raises `NoToken`, `WrongUrl` or
    `InvalidInput`. With `allow_missing_token`, `NoToken` is raised only when a request is sent.
    """
    settings = settings or read_client_settings()
    server_url = (url or settings.server_url or DEFAULT_SERVER_URL).rstrip("/")
    parts = _split_url(server_url)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or parts.path or parts.query:
        raise WrongUrl(f"{server_url[:100]!r} is not the URL of a server")
    slug = tenant or settings.tenant
    if slug is not None and not (slug.isascii() and slug.isprintable()):
        raise InvalidInput(f"{slug!r} is not the slug of a tenant", hint="`ingot tenants list` prints all slugs.")
    headers = {}
    if worker is not None:
        headers = {"x-worker-id": worker[0], "x-worker-secret": worker[1]}
    else:
        token = token or settings.token or None
        if token is None and is_loopback(parts.hostname):
            token = _read_operator_token(settings.data)
        if token is None and not allow_missing_token:
            raise NoToken
        if token is not None and not (token.isascii() and token.isprintable()):
            raise NoToken("the token contains characters that are not allowed")
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
    has_credentials = bool(headers)
    if slug is not None and worker is None:  # The credential of a worker determines its tenants.
        headers["ingot-tenant"] = slug
    return ServerAddress(url=server_url, headers=headers, has_credentials=has_credentials)


def _split_url(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        return parts if parts.port != 0 and parts.username is None else None  # `port` raises if it is not a number.
    except ValueError:
        return None


def _read_operator_token(data: Path) -> str | None:
    """Return the operator token from the data folder of a server on this machine."""
    try:
        return (data / TOKEN_FILE).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None
