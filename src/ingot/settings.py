"""Settings: one frozen value, read once from the environment, checked whole."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec

from ingot.kernel.errors import IngotError
from ingot.kernel.hidden import Unshown
from ingot.kernel.logs import LEVELS, Format

LEASE_SECONDS_MIN = 1.0
LEASE_SECONDS_MAX = 86_400.0
PORT_MAX = 65_535
CONNECTIONS_LIMIT = 1_000_000
RATE_MAX = 1_000_000.0
RATES = ("rate_read", "rate_write", "rate_wait")
EVENT_RETENTION_DAYS_MAX = 36_600.0
SESSION_TIMES = ("session_seconds", "session_idle_seconds", "session_renew_seconds")
PERSON_TOKEN_DAYS_MAX = 36_600.0
SESSION_SECONDS_MIN = 10.0
SESSION_SECONDS_MAX = 31_536_000.0
TYPO_LIKENESS = 0.9
DATABASE_SCHEMES = ("postgresql://", "postgres://")
FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}

CALLBACK = "/auth/callback"
CONFIGURATION = "/.well-known/openid-configuration"
PROVIDER_PARTS = ("oidc_client_secret", "oidc_redirect_url", "oidc_allowed_groups", "oidc_admin_groups", "oidc_scopes")

BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
BUCKET_PREFIX = re.compile(r"([A-Za-z0-9_-][A-Za-z0-9._-]*/){1,16}")
BUCKET_REGION = re.compile(r"[A-Za-z0-9-]{1,64}")
BUCKET_KEYS = ("s3_access_key", "s3_secret_key")
BUCKET_ENDPOINTS = ("s3_endpoint", "s3_public_endpoint")
BUCKET_PARTS = (*BUCKET_KEYS, *BUCKET_ENDPOINTS, "s3_prefix")
BUCKET_PREFIX_CHARACTERS_MAX = 200
MAX_BLOB_BYTES_LIMIT = 5 * 1024**4  # What stores that speak S3 take as one object.
COLLECT_SECONDS_MAX = 86_400.0
READ_ADDRESS_SECONDS = 3600.0
GRACE_SECONDS_MIN = READ_ADDRESS_SECONDS + 60  # Whoever has an address just now reads to the end of its time.
GRACE_SECONDS_MAX = 31_536_000.0
SCRUB_RATE_MAX = 10**12
SECRET_BYTES_MIN = 32
SECRET_DISTINCT_MIN = 12  # 32 random bytes have about 30 different ones.

# One alone is refused.
RELATED = ("oidc_issuer", "oidc_client_id", *PROVIDER_PARTS, "database_owner_url", "s3_bucket", *BUCKET_PARTS)

SECRET = (
    "operator_token",
    "database_url",
    "database_owner_url",
    "oidc_client_secret",
    "otel_endpoint",
    "s3_secret_key",
    "secret_key",
)
OTHER_NAMES = {"otel_endpoint": "OTEL_EXPORTER_OTLP_ENDPOINT"}  # The name that everybody knows it by.


S = TypeVar("S", bound=msgspec.Struct)


class SettingsError(IngotError):
    """A setting cannot be used."""

    code = "invalid_setting"
    hint = "Correct the environment variable and start again."


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How this process runs."""

    data: Path = Path("data")
    host: str = "127.0.0.1"
    port: int = 8080
    operator_token: str | None = None
    database_url: str | None = None
    database_owner_url: str | None = None
    database_pooled: bool = False
    lease_seconds: float = 180.0
    log_level: str = "info"
    log_format: Format | None = None
    otel_endpoint: str | None = None
    connections_max: int = 10_000
    rate_read: float = 1000.0
    rate_write: float = 2000.0
    rate_wait: float = 1000.0
    trusted_proxies: tuple[str, ...] = ()
    event_retention_days: float = 30.0
    public_url: str | None = None
    oidc_issuer: str | None = None
    oidc_client_id: str | None = None
    oidc_client_secret: str | None = None
    oidc_redirect_url: str | None = None
    oidc_allowed_groups: tuple[str, ...] = ()
    oidc_admin_groups: tuple[str, ...] = ()
    oidc_groups_claim: str = "groups"
    oidc_scopes: tuple[str, ...] = ()
    session_seconds: float = 43_200.0
    session_idle_seconds: float = 7_200.0
    session_renew_seconds: float = 3_600.0
    person_token_days: float = 90.0
    s3_bucket: str | None = None
    s3_endpoint: str | None = None
    s3_public_endpoint: str | None = None
    s3_access_key: str | None = None
    s3_secret_key: str | None = None
    s3_region: str = "us-east-1"
    s3_prefix: str | None = None
    max_blob_bytes: int = 1024**4
    collect_seconds: float = 30.0
    collect_grace_seconds: float = 4500.0
    scrub_bytes_per_second: int = 10_000_000
    secret_key: str | None = None

    def __post_init__(self) -> None:
        _check_lease(self.lease_seconds)
        if not 0 <= self.port <= PORT_MAX:
            raise SettingsError(f"INGOT_PORT is {self.port}; it goes from 0, any that is free, to {PORT_MAX}")
        if self.log_level not in LEVELS:
            raise SettingsError(f"INGOT_LOG_LEVEL is {self.log_level!r}; it is one of {', '.join(LEVELS)}")
        if self.log_format not in (None, "json", "text"):
            raise SettingsError(f"INGOT_LOG_FORMAT is {self.log_format!r}; it is json or text")
        if self.otel_endpoint is not None and not self.otel_endpoint.startswith(("http://", "https://")):
            raise SettingsError("OTEL_EXPORTER_OTLP_ENDPOINT does not begin with http:// or https://")
        if not 1 <= self.connections_max <= CONNECTIONS_LIMIT:
            bounds = f"it goes from 1 to {CONNECTIONS_LIMIT}"
            raise SettingsError(f"INGOT_CONNECTIONS_MAX is {self.connections_max}; {bounds}")
        for name in RATES:
            if not 0 < getattr(self, name) <= RATE_MAX:
                raise SettingsError(
                    f"{variable_of(name)} is {getattr(self, name)}; it goes from above 0 to {RATE_MAX:g}"
                )
        for proxy in self.trusted_proxies:
            _check_proxy(proxy)
        if not 0 <= self.event_retention_days <= EVENT_RETENTION_DAYS_MAX:
            bounds = f"it goes from 0, for ever, to {EVENT_RETENTION_DAYS_MAX:g}"
            raise SettingsError(f"INGOT_EVENT_RETENTION_DAYS is {self.event_retention_days}; {bounds}")
        _check_people(self)
        for name in ("database_url", "database_owner_url"):
            _check_database(name, getattr(self, name))
        if self.database_owner_url is not None and self.database_url is None:
            raise SettingsError(
                "INGOT_DATABASE_OWNER_URL is set, and INGOT_DATABASE_URL is not",
                hint="The owner's URL only migrates; the other one, with the role ingot_server, is worked with.",
            )
        if self.public_url is not None and _check_place(self.public_url, "INGOT_PUBLIC_URL").path:
            raise SettingsError(
                "INGOT_PUBLIC_URL has a path",
                hint="Name the place alone, as in https://ingot.example.com: cookies and links are for all of it.",
            )
        _check_provider(self)
        _check_blobs(self)
        _check_bucket(self)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        given = [(name, getattr(self, name)) for name in self.__struct_fields__]
        return [(name, "…" if name in SECRET and value is not None else value) for name, value in given]

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    @property
    def callback_url(self) -> str | None:
        """Where the provider sends people back to."""
        if self.oidc_redirect_url is None and self.public_url is not None:
            return self.public_url + CALLBACK
        return self.oidc_redirect_url


def _check_lease(seconds: float) -> None:
    if not LEASE_SECONDS_MIN <= seconds <= LEASE_SECONDS_MAX:
        bounds = f"it goes from {LEASE_SECONDS_MIN:g} to {LEASE_SECONDS_MAX:g}"
        raise SettingsError(f"INGOT_LEASE_SECONDS is {seconds}; {bounds}")


def _check_database(name: str, url: str | None) -> None:
    if url is not None and not url.startswith(DATABASE_SCHEMES):
        raise SettingsError(f"INGOT_{name.upper()} does not begin with {DATABASE_SCHEMES[0]}")


def _check_provider(settings: Settings) -> None:
    """Refuse half of a provider: nobody could sign in, or not only those who should."""
    issuer, client = settings.oidc_issuer, settings.oidc_client_id
    if (issuer is None) != (client is None):
        given, missing = ("ISSUER", "CLIENT_ID") if client is None else ("CLIENT_ID", "ISSUER")
        raise SettingsError(
            f"INGOT_OIDC_{given} is set, and INGOT_OIDC_{missing} is not",
            hint="Set both: the provider's address, and the id that it knows this server by.",
        )
    if issuer is None:
        for name in PROVIDER_PARTS:
            if getattr(settings, name):
                raise SettingsError(
                    f"{variable_of(name)} is set, and INGOT_OIDC_ISSUER is not",
                    hint="Set INGOT_OIDC_ISSUER and INGOT_OIDC_CLIENT_ID too, or leave all of them out.",
                )
        return
    if _check_place(issuer, "INGOT_OIDC_ISSUER").path.rstrip("/").endswith(CONFIGURATION):
        raise SettingsError(
            f"INGOT_OIDC_ISSUER ends with {CONFIGURATION}",
            hint="Leave that out: it is added to the address by which the provider calls itself.",
        )
    if settings.callback_url is None:
        raise SettingsError(
            "INGOT_OIDC_ISSUER is set, and neither INGOT_PUBLIC_URL nor INGOT_OIDC_REDIRECT_URL is",
            hint="Set INGOT_PUBLIC_URL to the address that browsers know this server by.",
        )
    if settings.oidc_redirect_url is not None:
        back = _check_place(settings.oidc_redirect_url, "INGOT_OIDC_REDIRECT_URL")
        if settings.public_url is not None and back.netloc != urlsplit(settings.public_url).netloc:
            raise SettingsError(
                "INGOT_OIDC_REDIRECT_URL is on another host than INGOT_PUBLIC_URL",
                hint="A browser brings what it keeps for one host to no other: leave INGOT_OIDC_REDIRECT_URL out.",
            )
    if settings.oidc_scopes and "openid" not in settings.oidc_scopes:
        raise SettingsError("INGOT_OIDC_SCOPES does not name openid", hint="Without it no provider says who came.")
    for name in ("oidc_allowed_groups", "oidc_admin_groups"):
        if "" in getattr(settings, name):
            raise SettingsError(
                f"{variable_of(name)} names a group without a name",
                hint="Name groups with one comma between two, and none at the end.",
            )


def _check_place(url: str, name: str) -> SplitResult:
    """An address whose answers can be trusted: https, or http on this machine. Not shown: it can hold a secret."""
    hint = "Give an address such as https://ingot.example.com; http is for 127.0.0.1, ::1 and localhost."
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise SettingsError(f"{name} is no address", hint=hint) from None
    if not host or not url.isascii() or not url.isprintable() or " " in url:
        raise SettingsError(f"{name} is no address", hint=hint)
    if not is_trusted(parts):
        raise SettingsError(f"{name} does not begin with https://", hint=hint)
    if "@" in parts.netloc or "?" in url or "#" in url:
        raise SettingsError(f"{name} has more in it than a place and a path", hint=hint)
    return parts


def is_trusted(parts: SplitResult) -> bool:
    """Whether nobody on the way to this address can listen or answer."""
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))


def is_loopback(host: str) -> bool:
    """Whether this host is the machine itself."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_people(settings: Settings) -> None:
    for name in SESSION_TIMES:
        if not SESSION_SECONDS_MIN <= getattr(settings, name) <= SESSION_SECONDS_MAX:
            bounds = f"it goes from {SESSION_SECONDS_MIN:g} to {SESSION_SECONDS_MAX:g}"
            raise SettingsError(f"{variable_of(name)} is {getattr(settings, name)}; {bounds}")
    if not 0 < settings.person_token_days <= PERSON_TOKEN_DAYS_MAX:
        bounds = f"it goes from above 0 to {PERSON_TOKEN_DAYS_MAX:g}"
        raise SettingsError(f"INGOT_PERSON_TOKEN_DAYS is {settings.person_token_days}; {bounds}")


def _check_blobs(settings: Settings) -> None:
    for name, least, most in (
        ("max_blob_bytes", 1, MAX_BLOB_BYTES_LIMIT),
        ("collect_seconds", 1, COLLECT_SECONDS_MAX),
        ("scrub_bytes_per_second", 0, SCRUB_RATE_MAX),
    ):
        if not least <= getattr(settings, name) <= most:
            raise SettingsError(f"{variable_of(name)} is {getattr(settings, name)}; it goes from {least} to {most:.0f}")
    if not GRACE_SECONDS_MIN <= settings.collect_grace_seconds <= GRACE_SECONDS_MAX:
        bounds = f"it goes from {GRACE_SECONDS_MIN:.0f} to {GRACE_SECONDS_MAX:.0f}"
        raise SettingsError(
            f"INGOT_COLLECT_GRACE_SECONDS is {settings.collect_grace_seconds}; {bounds}",
            hint=f"An address to read a blob is good for {READ_ADDRESS_SECONDS:.0f} s: the blob stays for longer.",
        )
    if settings.secret_key is not None:
        _check_secret(settings.secret_key)


def _check_secret(text: str) -> None:
    """Refuse what is not random: it is hex, or base64 in either alphabet. Never shown."""
    hint = "Make one: openssl rand -hex 32"
    try:
        key = bytes.fromhex(text)
    except ValueError:
        try:
            plain = text.rstrip("=").replace("-", "+").replace("_", "/")
            key = base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
        except (binascii.Error, ValueError):
            raise SettingsError("INGOT_SECRET_KEY is neither hex nor base64", hint=hint) from None
    if len(key) < SECRET_BYTES_MIN:
        raise SettingsError(f"INGOT_SECRET_KEY has {len(key)} bytes; it has at least {SECRET_BYTES_MIN}", hint=hint)
    if len(set(key)) < SECRET_DISTINCT_MIN:
        raise SettingsError("INGOT_SECRET_KEY is not random", hint=hint)


def _check_bucket(settings: Settings) -> None:
    """Refuse half of an object store."""
    if settings.s3_bucket is None:
        for name in BUCKET_PARTS:
            if getattr(settings, name) is not None:
                raise SettingsError(
                    f"{variable_of(name)} is set, and INGOT_S3_BUCKET is not",
                    hint="Set INGOT_S3_BUCKET too, or leave all of them out: blobs are in the data folder then.",
                )
        return
    for name in BUCKET_KEYS:
        if getattr(settings, name) is None:
            raise SettingsError(
                f"INGOT_S3_BUCKET is set, and {variable_of(name)} is not",
                hint="Set INGOT_S3_ACCESS_KEY and INGOT_S3_SECRET_KEY: addresses for clients are signed with them.",
            )
    if BUCKET_NAME.fullmatch(settings.s3_bucket) is None:
        raise SettingsError(
            f"INGOT_S3_BUCKET is {settings.s3_bucket!r}, which is no name of a bucket",
            hint="It has 3 to 63 lower-case letters, digits, dots and hyphens; the address is INGOT_S3_ENDPOINT.",
        )
    for name in BUCKET_ENDPOINTS:
        if (url := getattr(settings, name)) is not None:
            _check_endpoint(url, variable_of(name))
    if BUCKET_REGION.fullmatch(settings.s3_region) is None:
        raise SettingsError("INGOT_S3_REGION is no name of a region", hint="It looks like eu-central-1.")
    prefix = settings.s3_prefix
    if prefix is not None and (len(prefix) > BUCKET_PREFIX_CHARACTERS_MAX or BUCKET_PREFIX.fullmatch(prefix) is None):
        raise SettingsError(
            f"INGOT_S3_PREFIX is {prefix!r}, which cannot begin the name of an object",
            hint="Give a folder, as in team/ingot: letters, digits, dots, hyphens and underscores between slashes.",
        )


def _check_endpoint(url: str, name: str) -> None:
    """Not shown: it can hold a secret."""
    hint = "Give an address such as https://s3.example.com; leave it out for Amazon's own."
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise SettingsError(f"{name} is no address", hint=hint) from None
    if parts.scheme not in ("http", "https"):
        raise SettingsError(f"{name} does not begin with http:// or https://", hint=hint)
    if not host or not url.isascii() or not url.isprintable() or " " in url:
        raise SettingsError(f"{name} is no address", hint=hint)
    if "@" in parts.netloc or "?" in url or "#" in url:
        raise SettingsError(f"{name} has more in it than a place and a path", hint=hint)


def _check_proxy(text: str) -> None:
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        raise SettingsError(
            f"INGOT_TRUSTED_PROXIES names {text!r}, which is neither an address nor a network",
            hint="Name addresses or networks, as in 10.0.0.0/8, with commas between them.",
        ) from None
    if "/" in text and network.network_address != ip_interface(text).ip:
        raise SettingsError(
            f"INGOT_TRUSTED_PROXIES names {text!r}, which is an address inside a network",
            hint=f"Write {network} for the network, or the address alone.",
        )


def variable_of(field: str) -> str:
    """The variable that a setting is read from."""
    return OTHER_NAMES.get(field, f"INGOT_{field.upper()}")


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


class ClientSettings(Unshown, frozen=True, kw_only=True):
    """Where a client or a worker finds its server, and with what it comes."""

    server_url: str = "http://127.0.0.1:8080"
    token: str | None = None
    tenant: str | None = None
    worker_id: str | None = None
    worker_secret: str | None = None
    data: Path = Path("data")
    database_url: str | None = None
    database_pooled: bool = False
    lease_seconds: float = 180.0

    def __post_init__(self) -> None:
        _check_lease(self.lease_seconds)
        _check_database("database_url", self.database_url)


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


def forget_secrets() -> None:
    """Leave nothing in the environment that others could come to the server or the database with."""
    for field in (*SECRET, "token", "worker_secret"):
        os.environ.pop(variable_of(field), None)


def have_clients_find(url: str, data: Path) -> None:
    """Have clients that are made in this process from now on come to this server, unless they are told another."""
    os.environ[variable_of("server_url")] = url
    os.environ[variable_of("data")] = str(data)


def read_owner_url(environment: Mapping[str, str] | None = None) -> str:
    """The database as its owner comes to it, to prepare it for others. Raises `SettingsError`."""
    url = (os.environ if environment is None else environment).get("INGOT_DATABASE_OWNER_URL")
    if not url:
        raise SettingsError(
            "INGOT_DATABASE_OWNER_URL is not set",
            hint="Set it to postgresql://role:password@host/database, with a role that may make roles and schemas.",
        )
    _check_database("database_owner_url", url)
    return url


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from `INGOT_*` variables. Raises `SettingsError`."""
    return _read(Settings, environment)


def _read(kind: type[S], environment: Mapping[str, str] | None) -> S:
    environment = os.environ if environment is None else environment
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
    "scrub_bytes_per_second": _whole,
    **dict.fromkeys(("lease_seconds", "event_retention_days", "person_token_days", *RATES, *SESSION_TIMES), _number),
    **dict.fromkeys(("collect_seconds", "collect_grace_seconds"), _number),
}
