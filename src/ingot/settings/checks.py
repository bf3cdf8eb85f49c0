"""What settings can be: each by itself, and together."""

from __future__ import annotations

import base64
import binascii
import re
from ipaddress import ip_address, ip_interface, ip_network
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from ingot.kernel.errors import IngotError
from ingot.kernel.secret_key import KEY_SEPARATORS

if TYPE_CHECKING:
    from ingot.settings.model import Settings

LEASE_SECONDS_MIN = 1.0
LEASE_SECONDS_MAX = 86_400.0
PORT_MAX = 65_535
CONNECTIONS_LIMIT = 1_000_000
RATE_MAX = 1_000_000.0
RATE_FIELDS = ("rate_read", "rate_write", "rate_wait")
EVENT_RETENTION_DAYS_MAX = 36_600.0
SESSION_FIELDS = ("session_seconds", "session_idle_seconds", "session_renew_seconds")
PERSON_TOKEN_DAYS_MAX = 36_600.0
SESSION_SECONDS_MIN = 10.0
SESSION_SECONDS_MAX = 31_536_000.0
DATABASE_SCHEMES = ("postgresql://", "postgres://")

DISCOVERY_PATH = "/.well-known/openid-configuration"
PROVIDER_FIELDS = ("oidc_client_secret", "oidc_redirect_url", "oidc_allowed_groups", "oidc_admin_groups", "oidc_scopes")

BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
BUCKET_PREFIX = re.compile(r"([A-Za-z0-9_-][A-Za-z0-9._-]*/){1,16}")
BUCKET_REGION = re.compile(r"[A-Za-z0-9-]{1,64}")
BUCKET_ENDPOINT_FIELDS = ("s3_endpoint", "s3_public_endpoint")
BUCKET_FIELDS = ("s3_access_key", "s3_secret_key", *BUCKET_ENDPOINT_FIELDS, "s3_prefix")
BUCKET_PREFIX_CHARS_MAX = 200

MAX_BLOB_BYTES_LIMIT = 5 * 1024**4  # What stores that speak S3 take as one object.
SPARE_BYTES_MAX = 1024**4
COLLECT_SECONDS_MAX = 86_400.0
READ_URL_SECONDS = 3600.0
GRACE_SECONDS_MIN = READ_URL_SECONDS + 60  # Whoever has an address just now reads to the end of its time.
GRACE_SECONDS_MAX = 31_536_000.0
SCRUB_RATE_MAX = 10**12
SECRET_KEY_BYTES_MIN = 32
SECRET_KEY_DISTINCT_BYTES_MIN = 12  # 32 random bytes have about 30 different ones.

VARIABLE_NAMES = {"otel_endpoint": "OTEL_EXPORTER_OTLP_ENDPOINT"}  # The name that everybody knows it by.

_OWNER = "The owner's URL only migrates; the other one, with the role ingot_server, is worked with."
_BOTH = "Set both: the provider's address, and the id that it knows this server by."
_PROVIDER = "Set INGOT_OIDC_ISSUER and INGOT_OIDC_CLIENT_ID too, or leave all of them out."
_BUCKET = "Set INGOT_S3_BUCKET too, or leave all of them out: blobs are in the data folder then."
_KEYS = "Set INGOT_S3_ACCESS_KEY and INGOT_S3_SECRET_KEY: addresses for clients are signed with them."
# Settings that mean nothing without another one: these, the one that they need, and what to do.
NEEDS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("database_owner_url",), "database_url", _OWNER),
    (("oidc_issuer",), "oidc_client_id", _BOTH),
    (("oidc_client_id",), "oidc_issuer", _BOTH),
    (PROVIDER_FIELDS, "oidc_issuer", _PROVIDER),
    (BUCKET_FIELDS, "s3_bucket", _BUCKET),
    (("s3_bucket",), "s3_access_key", _KEYS),
    (("s3_bucket",), "s3_secret_key", _KEYS),
)


class SettingsError(IngotError):
    """A setting cannot be used."""

    code = "invalid_setting"
    hint = "Correct the environment variable and start again."


def check_needs(settings: Settings) -> None:
    """Refuse a setting without the one that it needs."""
    for names, needed, hint in NEEDS:
        for name in names:
            if getattr(settings, name) not in (None, ()) and getattr(settings, needed) is None:
                raise SettingsError(f"{variable_name(name)} is set, and {variable_name(needed)} is not", hint=hint)


def check_lease_seconds(seconds: float) -> None:
    """Refuse a lease that is too short or too long."""
    if not LEASE_SECONDS_MIN <= seconds <= LEASE_SECONDS_MAX:
        bounds = f"it goes from {LEASE_SECONDS_MIN:g} to {LEASE_SECONDS_MAX:g}"
        raise SettingsError(f"INGOT_LEASE_SECONDS is {seconds}; {bounds}")


def check_database_url(name: str, url: str | None) -> None:
    """Refuse another kind of database. Not shown: it can hold a password."""
    if url is not None and not url.startswith(DATABASE_SCHEMES):
        raise SettingsError(f"INGOT_{name.upper()} does not begin with {DATABASE_SCHEMES[0]}")


def check_provider(settings: Settings) -> None:
    """Refuse a provider with which nobody could sign in, or not only those who should."""
    if settings.oidc_issuer is None:
        return
    if check_secure_url(settings.oidc_issuer, "INGOT_OIDC_ISSUER").path.rstrip("/").endswith(DISCOVERY_PATH):
        raise SettingsError(
            f"INGOT_OIDC_ISSUER ends with {DISCOVERY_PATH}",
            hint="Leave that out: it is added to the address by which the provider calls itself.",
        )
    if settings.callback_url is None:
        raise SettingsError(
            "INGOT_OIDC_ISSUER is set, and neither INGOT_PUBLIC_URL nor INGOT_OIDC_REDIRECT_URL is",
            hint="Set INGOT_PUBLIC_URL to the address that browsers know this server by.",
        )
    if settings.oidc_redirect_url is not None:
        back = check_secure_url(settings.oidc_redirect_url, "INGOT_OIDC_REDIRECT_URL")
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
                f"{variable_name(name)} names a group without a name",
                hint="Name groups with one comma between two, and none at the end.",
            )


def check_secure_url(url: str, name: str) -> SplitResult:
    """An address whose answers can be trusted: https, or http on this machine. Not shown: it can hold a secret."""
    hint = "Give an address such as https://ingot.example.com; http is for 127.0.0.1, ::1 and localhost."
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise SettingsError(f"{name} is no address", hint=hint) from None
    if not host or not url.isascii() or not url.isprintable() or " " in url:
        raise SettingsError(f"{name} is no address", hint=hint)
    if not is_secure_url(parts):
        raise SettingsError(f"{name} does not begin with https://", hint=hint)
    if "@" in parts.netloc or "?" in url or "#" in url:
        raise SettingsError(f"{name} has more in it than a place and a path", hint=hint)
    return parts


def is_secure_url(parts: SplitResult) -> bool:
    """Whether nobody on the way to this address can listen or answer."""
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))


def is_loopback(host: str) -> bool:
    """Whether this host is the machine itself."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_session_times(settings: Settings) -> None:
    """Refuse times of sessions and tokens that are too short or too long."""
    for name in SESSION_FIELDS:
        if not SESSION_SECONDS_MIN <= getattr(settings, name) <= SESSION_SECONDS_MAX:
            bounds = f"it goes from {SESSION_SECONDS_MIN:g} to {SESSION_SECONDS_MAX:g}"
            raise SettingsError(f"{variable_name(name)} is {getattr(settings, name)}; {bounds}")
    if not 0 < settings.person_token_days <= PERSON_TOKEN_DAYS_MAX:
        bounds = f"it goes from above 0 to {PERSON_TOKEN_DAYS_MAX:g}"
        raise SettingsError(f"INGOT_PERSON_TOKEN_DAYS is {settings.person_token_days}; {bounds}")


def check_blob_limits(settings: Settings) -> None:
    """Refuse bounds of blobs that cannot be held, and a key that is none."""
    for name, least, most in (
        ("max_blob_bytes", 1, MAX_BLOB_BYTES_LIMIT),
        ("spare_bytes", 0, SPARE_BYTES_MAX),
        ("collect_seconds", 1, COLLECT_SECONDS_MAX),
        ("scrub_bytes_per_second", 0, SCRUB_RATE_MAX),
    ):
        value = getattr(settings, name)
        if value is not None and not least <= value <= most:
            raise SettingsError(f"{variable_name(name)} is {value}; it goes from {least} to {most:.0f}")
    if not GRACE_SECONDS_MIN <= settings.collect_grace_seconds <= GRACE_SECONDS_MAX:
        bounds = f"it goes from {GRACE_SECONDS_MIN:.0f} to {GRACE_SECONDS_MAX:.0f}"
        raise SettingsError(
            f"INGOT_COLLECT_GRACE_SECONDS is {settings.collect_grace_seconds}; {bounds}",
            hint=f"An address to read a blob is good for {READ_URL_SECONDS:.0f} s: the blob stays for longer.",
        )
    if settings.secret_key is not None:
        for key in filter(str.strip, KEY_SEPARATORS.split(settings.secret_key)):
            _check_secret_key(key.strip())


def _check_secret_key(text: str) -> None:
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
    if len(key) < SECRET_KEY_BYTES_MIN:
        raise SettingsError(f"INGOT_SECRET_KEY has {len(key)} bytes; it has at least {SECRET_KEY_BYTES_MIN}", hint=hint)
    if len(set(key)) < SECRET_KEY_DISTINCT_BYTES_MIN:
        raise SettingsError("INGOT_SECRET_KEY is not random", hint=hint)


def check_bucket(settings: Settings) -> None:
    """Refuse an object store that there cannot be."""
    if settings.s3_bucket is None:
        return
    if BUCKET_NAME.fullmatch(settings.s3_bucket) is None:
        raise SettingsError(
            f"INGOT_S3_BUCKET is {settings.s3_bucket!r}, which is no name of a bucket",
            hint="It has 3 to 63 lower-case letters, digits, dots and hyphens; the address is INGOT_S3_ENDPOINT.",
        )
    for name in BUCKET_ENDPOINT_FIELDS:
        if (url := getattr(settings, name)) is not None:
            _check_bucket_endpoint(url, variable_name(name))
    if BUCKET_REGION.fullmatch(settings.s3_region) is None:
        raise SettingsError("INGOT_S3_REGION is no name of a region", hint="It looks like eu-central-1.")
    prefix = settings.s3_prefix
    if prefix is not None and (len(prefix) > BUCKET_PREFIX_CHARS_MAX or BUCKET_PREFIX.fullmatch(prefix) is None):
        raise SettingsError(
            f"INGOT_S3_PREFIX is {prefix!r}, which cannot begin the name of an object",
            hint="Give a folder, as in team/ingot: letters, digits, dots, hyphens and underscores between slashes.",
        )


def _check_bucket_endpoint(url: str, name: str) -> None:
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


def check_proxy(text: str) -> None:
    """Refuse what is neither an address nor a network."""
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


def variable_name(field: str) -> str:
    """The variable that a setting is read from."""
    return VARIABLE_NAMES.get(field, f"INGOT_{field.upper()}")
