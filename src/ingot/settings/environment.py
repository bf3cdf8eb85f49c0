"""Reading settings from environment variables."""

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
# Settings that require another setting, and are therefore not checked one by one.
DEPENDENT_FIELDS = (
    "oidc_issuer",
    "oidc_client_id",
    *PROVIDER_FIELDS,
    "database_owner_url",
    "s3_bucket",
    *BUCKET_FIELDS,
)
S = TypeVar("S", bound=msgspec.Struct)
_process_variables: dict[str, str] = {}  # Variables of this process that child processes do not inherit.


def _check_variable_names(environment: Mapping[str, str]) -> None:
    """Raise `SettingsError` for a variable that looks like a misspelled setting.

    A misspelled variable would otherwise be ignored, and for example data would be stored in the wrong folder.
    """
    for name, suggestion in find_unknown_variables(environment, similarity_min=TYPO_SIMILARITY_MIN).items():
        if suggestion is not None:
            raise SettingsError(
                f"{name} is not a setting; did you mean {suggestion}?", hint=f"Rename or unset {name}, and start again."
            )


def find_unknown_variables(
    environment: Mapping[str, str] | None = None, *, similarity_min: float
) -> dict[str, str | None]:
    """Return the variables that begin with INGOT and are not settings.

    Each is mapped to the most similar setting whose similarity is at least `similarity_min`, or to `None`.
    """
    setting_names = [variable_name(field) for field in _field_names()]
    suggestions = {}
    for name in sorted((os.environ if environment is None else environment).keys() - setting_names):
        if name.startswith("INGOT"):
            suggestions[name] = next(iter(get_close_matches(name, setting_names, n=1, cutoff=similarity_min)), None)
    return suggestions


def find_setting_errors(environment: Mapping[str, str] | None = None) -> list[SettingsError]:
    """Return one error for each invalid variable. If each one is valid, check the combination of all."""
    environment = os.environ if environment is None else environment
    errors: list[SettingsError] = []
    for field in _field_names():
        settings_type: type[msgspec.Struct] = Settings if field in Settings.__struct_fields__ else ClientSettings
        try:
            if text := environment.get(name := variable_name(field)):
                value = PARSERS.get(field, _parse_text)(text, name)
                if field not in DEPENDENT_FIELDS:
                    settings_type(**{field: value})
        except SettingsError as error:
            errors.append(error)
    if not errors:
        try:
            read_settings(
                {name: text for name, text in environment.items() if name in map(variable_name, _field_names())}
            )
        except SettingsError as error:
            errors.append(error)
    return errors


def _field_names() -> list[str]:
    return list(dict.fromkeys((*Settings.__struct_fields__, *ClientSettings.__struct_fields__)))


def read_client_settings(environment: Mapping[str, str] | None = None) -> ClientSettings:
    """Read the settings of a client or worker from environment variables. Raises `SettingsError`."""
    return _read_environment(ClientSettings, environment)


def cache_folder(environment: Mapping[str, str] | None = None) -> Path | None:
    """Return the cache folder of this user, or `None` if the user has no home folder."""
    cache_home = (os.environ if environment is None else environment).get("XDG_CACHE_HOME", "")
    try:
        return (Path(cache_home) if os.path.isabs(cache_home) else Path.home() / ".cache") / "ingot"
    except RuntimeError:
        return None


def environment_without_secrets() -> dict[str, str]:
    """Return the environment of this process without credentials and keys."""
    secret_names = {variable_name(field) for field in (*SECRET_FIELDS, "token", "worker_secret")}
    return {name: text for name, text in os.environ.items() if name not in secret_names}


def export_client_settings(
    *, server_url: str | None = None, data: Path | None = None, tenant: str | None = None, token: str | None = None
) -> None:
    """Set these as defaults of clients that this process and its child processes create from now on.

    The token is only used in this process and is not passed to child processes.
    """
    values = {"server_url": server_url, "data": None if data is None else str(data), "tenant": tenant}
    os.environ.update({variable_name(name): value for name, value in values.items() if value})
    if token:
        _process_variables[variable_name("token")] = token


def read_database_owner_url(environment: Mapping[str, str] | None = None) -> str:
    """Read the URL with which the owner of the database creates roles and schemas. Raises `SettingsError`."""
    url = (os.environ if environment is None else environment).get("INGOT_DATABASE_OWNER_URL")
    if not url:
        raise SettingsError(
            "INGOT_DATABASE_OWNER_URL is not set",
            hint="Set it to postgresql://role:password@host/database, with a role that may create roles and schemas.",
        )
    check_database_url("database_owner_url", url)
    return url


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Read the settings of a server from environment variables. Raises `SettingsError`."""
    return _read_environment(Settings, environment)


def _read_environment(settings_type: type[S], environment: Mapping[str, str] | None) -> S:
    environment = {**os.environ, **_process_variables} if environment is None else environment
    _check_variable_names(environment)
    values = {
        field: PARSERS.get(field, _parse_text)(text, name)
        for field in settings_type.__struct_fields__
        if (text := environment.get(name := variable_name(field)))
    }
    return settings_type(**values)


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
        raise SettingsError(f"{name} must be a whole number, got {text!r}")
    return int(text)


def _parse_number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SettingsError(f"{name} must be a number, got {text!r}") from None


def _parse_boolean(text: str, name: str) -> bool:
    if text.lower() not in BOOLEANS:
        raise SettingsError(f"{name} must be true or false, got {text!r}")
    return BOOLEANS[text.lower()]


PARSERS: Final[dict[str, Callable[[str, str], Any]]] = {
    "data": _parse_path,
    "embed_model": _parse_path,
    "port": _parse_integer,
    "connections_max": _parse_integer,
    "buffered_bytes_max": _parse_integer,
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
    **dict.fromkeys(
        (
            "collect_seconds",
            "collect_grace_seconds",
            "database_wait_seconds",
            "app_transaction_seconds_max",
        ),
        _parse_number,
    ),
}
