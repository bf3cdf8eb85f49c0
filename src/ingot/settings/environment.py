"""Settings as they are read, once, from the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from ingot.settings.checks import (
    BUCKET_ENDPOINT_FIELDS,
    BUCKET_FIELDS,
    PROVIDER_FIELDS,
    RATE_FIELDS,
    SESSION_FIELDS,
    SettingsError,
    check_database_url,
    variable_name,
)
from ingot.settings.model import SECRET_FIELDS, ClientSettings, Settings

TYPO_SIMILARITY_MIN = 0.9
BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
# One alone is refused.
DEPENDENT_FIELDS = (
    "oidc_issuer",
    "oidc_client_id",
    *PROVIDER_FIELDS,
    "database_owner_url",
    "s3_bucket",
    *BUCKET_FIELDS,
)
S = TypeVar("S", bound=msgspec.Struct)
_process_variables: dict[str, str] = {}  # Variables of this process that those who are started here do not have.


def _check_variable_names(environment: Mapping[str, str]) -> None:
    """Refuse a variable that was meant to be one of ours: a store in the wrong place is found out too late."""
    for name, meant in find_unknown_variables(environment, similarity_min=TYPO_SIMILARITY_MIN).items():
        if meant is not None:
            raise SettingsError(f"{name} is no setting; {meant} is")


def find_unknown_variables(
    environment: Mapping[str, str] | None = None, *, similarity_min: float
) -> dict[str, str | None]:
    """The variables that begin as ours do and are none, each with the one that it is most like, if it is so like."""
    known = [variable_name(field) for field in _field_names()]
    found = {}
    for name in sorted((os.environ if environment is None else environment).keys() - known):
        if name.startswith("INGOT"):
            found[name] = next(iter(get_close_matches(name, known, n=1, cutoff=similarity_min)), None)
    return found


def find_setting_errors(environment: Mapping[str, str] | None = None) -> list[SettingsError]:
    """What is wrong with the variables: each that cannot be read, and when all can, what does not go together."""
    environment = os.environ if environment is None else environment
    found: list[SettingsError] = []
    for field in _field_names():
        kind: type[msgspec.Struct] = Settings if field in Settings.__struct_fields__ else ClientSettings
        try:
            if text := environment.get(name := variable_name(field)):
                value = PARSERS.get(field, _parse_text)(text, name)
                if field not in DEPENDENT_FIELDS:
                    kind(**{field: value})
        except SettingsError as error:
            found.append(error)
    if not found:
        try:
            read_settings(
                {name: text for name, text in environment.items() if name in map(variable_name, _field_names())}
            )
        except SettingsError as error:
            found.append(error)
    return found


def _field_names() -> list[str]:
    return list(dict.fromkeys((*Settings.__struct_fields__, *ClientSettings.__struct_fields__)))


def read_client_settings(environment: Mapping[str, str] | None = None) -> ClientSettings:
    """Settings of a client from `INGOT_*` variables. Raises `SettingsError`."""
    return _read_environment(ClientSettings, environment)


def cache_folder(environment: Mapping[str, str] | None = None) -> Path | None:
    """Where the commands of this user keep what they can do without; `None` for one without a home."""
    said = (os.environ if environment is None else environment).get("XDG_CACHE_HOME", "")
    try:
        return (Path(said) if os.path.isabs(said) else Path.home() / ".cache") / "ingot"
    except RuntimeError:
        return None


def environment_without_secrets() -> dict[str, str]:
    """The environment, without what others could come to the server or the database with."""
    secrets = {variable_name(field) for field in (*SECRET_FIELDS, "token", "worker_secret")}
    return {name: text for name, text in os.environ.items() if name not in secrets}


def export_client_settings(
    *, server_url: str | None = None, data: Path | None = None, tenant: str | None = None, token: str | None = None
) -> None:
    """Have clients that are made from now on find these, here and in what is started here.

    A token is known in this process alone.
    """
    said = {"server_url": server_url, "data": None if data is None else str(data), "tenant": tenant}
    os.environ.update({variable_name(name): value for name, value in said.items() if value})
    if token:
        _process_variables[variable_name("token")] = token


def read_database_owner_url(environment: Mapping[str, str] | None = None) -> str:
    """The database as its owner comes to it, to prepare it for others. Raises `SettingsError`."""
    url = (os.environ if environment is None else environment).get("INGOT_DATABASE_OWNER_URL")
    if not url:
        raise SettingsError(
            "INGOT_DATABASE_OWNER_URL is not set",
            hint="Set it to postgresql://role:password@host/database, with a role that may make roles and schemas.",
        )
    check_database_url("database_owner_url", url)
    return url


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from `INGOT_*` variables. Raises `SettingsError`."""
    return _read_environment(Settings, environment)


def _read_environment(kind: type[S], environment: Mapping[str, str] | None) -> S:
    environment = {**os.environ, **_process_variables} if environment is None else environment
    _check_variable_names(environment)
    given = {
        field: PARSERS.get(field, _parse_text)(text, name)
        for field in kind.__struct_fields__
        if (text := environment.get(name := variable_name(field)))
    }
    return kind(**given)


def _parse_text(text: str, _: str) -> str:
    return text


def _parse_path(text: str, _: str) -> Path:
    return Path(text)


def _parse_comma_list(text: str, _: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _parse_url(text: str, _: str) -> str:
    return text.removesuffix("/")


def _parse_prefix(text: str, _: str) -> str:
    return text.removesuffix("/") + "/"


def _parse_words(text: str, _: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def _parse_integer(text: str, name: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise SettingsError(f"{name} is {text!r}; it is a whole number")
    return int(text)


def _parse_number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SettingsError(f"{name} is {text!r}; it is a number") from None


def _parse_boolean(text: str, name: str) -> bool:
    if text.lower() not in BOOLEANS:
        raise SettingsError(f"{name} is {text!r}; it is true or false")
    return BOOLEANS[text.lower()]


PARSERS: Final[dict[str, Callable[[str, str], Any]]] = {
    "data": _parse_path,
    "embed_model": _parse_path,
    "port": _parse_integer,
    "connections_max": _parse_integer,
    "database_pooled": _parse_boolean,
    "trusted_proxies": _parse_comma_list,
    "oidc_allowed_groups": _parse_comma_list,
    "oidc_admin_groups": _parse_comma_list,
    "oidc_scopes": _parse_words,
    "public_url": _parse_url,
    **dict.fromkeys(BUCKET_ENDPOINT_FIELDS, _parse_url),
    "s3_prefix": _parse_prefix,
    "max_blob_bytes": _parse_integer,
    "spare_bytes": _parse_integer,
    "scrub_bytes_per_second": _parse_integer,
    **dict.fromkeys(
        ("lease_seconds", "event_retention_days", "person_token_days", *RATE_FIELDS, *SESSION_FIELDS), _parse_number
    ),
    **dict.fromkeys(("collect_seconds", "collect_grace_seconds"), _parse_number),
}
