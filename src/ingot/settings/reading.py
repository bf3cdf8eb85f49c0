"""Settings as they are read, once, from the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from ingot.settings.checks import (
    BUCKET_ENDPOINTS,
    BUCKET_PARTS,
    PROVIDER_PARTS,
    RATES,
    SESSION_TIMES,
    SettingsError,
    check_database,
    variable_of,
)
from ingot.settings.model import SECRET, ClientSettings, Settings

TYPO_LIKENESS = 0.9
FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
# One alone is refused.
RELATED = ("oidc_issuer", "oidc_client_id", *PROVIDER_PARTS, "database_owner_url", "s3_bucket", *BUCKET_PARTS)
S = TypeVar("S", bound=msgspec.Struct)
_told: dict[str, str] = {}  # Variables of this process that those who are started here do not have.


def _check_names(environment: Mapping[str, str]) -> None:
    """Refuse a variable that was meant to be one of ours: a store in the wrong place is found out too late."""
    for name, meant in unknown_names(environment, likeness=TYPO_LIKENESS).items():
        if meant is not None:
            raise SettingsError(f"{name} is no setting; {meant} is")


def unknown_names(environment: Mapping[str, str] | None = None, *, likeness: float) -> dict[str, str | None]:
    """The variables that begin as ours do and are none, each with the one that it is most like, if it is so like."""
    known = [variable_of(field) for field in _fields()]
    found = {}
    for name in sorted((os.environ if environment is None else environment).keys() - known):
        if name.startswith("INGOT"):
            found[name] = next(iter(get_close_matches(name, known, n=1, cutoff=likeness)), None)
    return found


def faults(environment: Mapping[str, str] | None = None) -> list[SettingsError]:
    """What is wrong with the variables: each that cannot be read, and when all can, what does not go together."""
    environment = os.environ if environment is None else environment
    found: list[SettingsError] = []
    for field in _fields():
        kind: type[msgspec.Struct] = Settings if field in Settings.__struct_fields__ else ClientSettings
        try:
            if text := environment.get(name := variable_of(field)):
                value = READERS.get(field, _text)(text, name)
                if field not in RELATED:
                    kind(**{field: value})
        except SettingsError as error:
            found.append(error)
    if not found:
        try:
            read_settings({name: text for name, text in environment.items() if name in map(variable_of, _fields())})
        except SettingsError as error:
            found.append(error)
    return found


def _fields() -> list[str]:
    return list(dict.fromkeys((*Settings.__struct_fields__, *ClientSettings.__struct_fields__)))


def read_client_settings(environment: Mapping[str, str] | None = None) -> ClientSettings:
    """Settings of a client from `INGOT_*` variables. Raises `SettingsError`."""
    return _read(ClientSettings, environment)


def cache_folder(environment: Mapping[str, str] | None = None) -> Path | None:
    """Where the commands of this user keep what they can do without; `None` for one without a home."""
    said = (os.environ if environment is None else environment).get("XDG_CACHE_HOME", "")
    try:
        return (Path(said) if os.path.isabs(said) else Path.home() / ".cache") / "ingot"
    except RuntimeError:
        return None


def without_secrets() -> dict[str, str]:
    """The environment, without what others could come to the server or the database with."""
    secrets = {variable_of(field) for field in (*SECRET, "token", "worker_secret")}
    return {name: text for name, text in os.environ.items() if name not in secrets}


def have_clients_find(
    *, server_url: str | None = None, data: Path | None = None, tenant: str | None = None, token: str | None = None
) -> None:
    """Have clients that are made from now on find these, here and in what is started here.

    A token is known in this process alone.
    """
    said = {"server_url": server_url, "data": None if data is None else str(data), "tenant": tenant}
    os.environ.update({variable_of(name): value for name, value in said.items() if value})
    if token:
        _told[variable_of("token")] = token


def read_owner_url(environment: Mapping[str, str] | None = None) -> str:
    """The database as its owner comes to it, to prepare it for others. Raises `SettingsError`."""
    url = (os.environ if environment is None else environment).get("INGOT_DATABASE_OWNER_URL")
    if not url:
        raise SettingsError(
            "INGOT_DATABASE_OWNER_URL is not set",
            hint="Set it to postgresql://role:password@host/database, with a role that may make roles and schemas.",
        )
    check_database("database_owner_url", url)
    return url


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from `INGOT_*` variables. Raises `SettingsError`."""
    return _read(Settings, environment)


def _read(kind: type[S], environment: Mapping[str, str] | None) -> S:
    environment = {**os.environ, **_told} if environment is None else environment
    _check_names(environment)
    given = {
        field: READERS.get(field, _text)(text, name)
        for field in kind.__struct_fields__
        if (text := environment.get(name := variable_of(field)))
    }
    return kind(**given)


def _text(text: str, _: str) -> str:
    return text


def _path(text: str, _: str) -> Path:
    return Path(text)


def _names(text: str, _: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _place(text: str, _: str) -> str:
    return text.removesuffix("/")


def _folder(text: str, _: str) -> str:
    return text.removesuffix("/") + "/"


def _words(text: str, _: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def _whole(text: str, name: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise SettingsError(f"{name} is {text!r}; it is a whole number")
    return int(text)


def _number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SettingsError(f"{name} is {text!r}; it is a number") from None


def _flag(text: str, name: str) -> bool:
    if text.lower() not in FLAGS:
        raise SettingsError(f"{name} is {text!r}; it is true or false")
    return FLAGS[text.lower()]


READERS: Final[dict[str, Callable[[str, str], Any]]] = {
    "data": _path,
    "embed_model": _path,
    "port": _whole,
    "connections_max": _whole,
    "database_pooled": _flag,
    "trusted_proxies": _names,
    "oidc_allowed_groups": _names,
    "oidc_admin_groups": _names,
    "oidc_scopes": _words,
    "public_url": _place,
    **dict.fromkeys(BUCKET_ENDPOINTS, _place),
    "s3_prefix": _folder,
    "max_blob_bytes": _whole,
    "spare_bytes": _whole,
    "scrub_bytes_per_second": _whole,
    **dict.fromkeys(("lease_seconds", "event_retention_days", "person_token_days", *RATES, *SESSION_TIMES), _number),
    **dict.fromkeys(("collect_seconds", "collect_grace_seconds"), _number),
}
