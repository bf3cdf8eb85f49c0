"""Validation of settings, one by one and in combination. Each check raises `SettingsError`."""

from __future__ import annotations

import base64
import binascii
import re
from ipaddress import ip_address, ip_interface, ip_network
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from ingot.kernel.errors import IngotError
from ingot.kernel.logs import FORMATS, LEVELS
from ingot.kernel.secret_key import KEY_SEPARATORS

if TYPE_CHECKING:
    from ingot.settings.model import Settings

LEASE_SECONDS = 30.0  # Unless it is configured.
LEASE_SECONDS_MIN = 1.0
LEASE_SECONDS_MAX = 86_400.0
PORT_MAX = 65_535
CONNECTIONS_LIMIT = 1_000_000
BUFFERED_BYTES_MIN = 16 * 1024 * 1024  # So that every route can still receive bodies of 1 MiB.
RATE_MAX = 1_000_000.0
RATE_FIELDS = ("rate_read", "rate_write", "rate_wait")
APP_TRANSACTION_SECONDS_LIMIT = 86_400.0
EVENT_RETENTION_DAYS_MAX = 36_600.0
SESSION_FIELDS = ("session_seconds", "session_idle_seconds", "session_renew_seconds")
PERSON_TOKEN_DAYS_MAX = 36_600.0
SESSION_SECONDS_MIN = 10.0
SESSION_SECONDS_MAX = 31_536_000.0
DATABASE_WAIT_SECONDS_MAX = 86_400.0
DATABASE_SCHEMES = ("postgresql://", "postgres://")

DISCOVERY_PATH = "/.well-known/openid-configuration"
PROVIDER_FIELDS = ("oidc_client_secret", "oidc_redirect_url", "oidc_allowed_groups", "oidc_admin_groups", "oidc_scopes")

BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
BUCKET_PREFIX = re.compile(r"([A-Za-z0-9_-][A-Za-z0-9._-]*/){1,16}")
BUCKET_REGION = re.compile(r"[A-Za-z0-9-]{1,64}")
BUCKET_ENDPOINT_FIELDS = ("s3_endpoint", "s3_public_endpoint")
BUCKET_FIELDS = ("s3_access_key", "s3_secret_key", *BUCKET_ENDPOINT_FIELDS, "s3_prefix")
BUCKET_PREFIX_CHARS_MAX = 200

MAX_BLOB_BYTES_LIMIT = 5 * 1024**4  # The largest object that S3 supports.
SPARE_BYTES_MAX = 1024**4
COLLECT_SECONDS_MAX = 86_400.0
GRACE_SECONDS_MIN = 120.0  # URLs for reading objects of a bucket are valid for 60 seconds less.
GRACE_SECONDS_MAX = 31_536_000.0
SCRUB_RATE_MAX = 10**12
SECRET_KEY_BYTES_MIN = 32
SECRET_KEY_DISTINCT_BYTES_MIN = 12  # 32 random bytes have about 30 distinct values.

VARIABLE_NAMES = {"otel_endpoint": "OTEL_EXPORTER_OTLP_ENDPOINT"}  # The standard name of OpenTelemetry.

_OWNER_HINT = "The owner URL is only used for migrations. Set INGOT_DATABASE_URL with the role ingot_server as well."
_ISSUER_HINT = (
    "Set both INGOT_OIDC_ISSUER and INGOT_OIDC_CLIENT_ID, the client ID that the provider assigned to this server."
)
_PROVIDER_HINT = "Set INGOT_OIDC_ISSUER and INGOT_OIDC_CLIENT_ID as well, or unset all INGOT_OIDC_… variables."
_BUCKET_HINT = "Set INGOT_S3_BUCKET as well, or unset all INGOT_S3_… variables to store blobs in the data folder."
_ACCESS_KEY_HINT = "Set INGOT_S3_ACCESS_KEY and INGOT_S3_SECRET_KEY, which sign requests and URLs for clients."
# Settings that require another setting: their fields, the required field, and a hint.
NEEDS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("database_owner_url",), "database_url", _OWNER_HINT),
    (("oidc_issuer",), "oidc_client_id", _ISSUER_HINT),
    (("oidc_client_id",), "oidc_issuer", _ISSUER_HINT),
    (PROVIDER_FIELDS, "oidc_issuer", _PROVIDER_HINT),
    (BUCKET_FIELDS, "s3_bucket", _BUCKET_HINT),
    (("s3_bucket",), "s3_access_key", _ACCESS_KEY_HINT),
    (("s3_bucket",), "s3_secret_key", _ACCESS_KEY_HINT),
)


class SettingsError(IngotError):
    """A setting is not valid."""

    code = "invalid_setting"
    hint = "Correct the environment variable and start again."


def check_needs(settings: Settings) -> None:
    """Check that the settings on which other settings depend are set."""
    for names, needed, hint in NEEDS:
        for name in names:
            if getattr(settings, name) not in (None, ()) and getattr(settings, needed) is None:
                raise SettingsError(
                    f"{variable_name(name)} requires {variable_name(needed)}, which is not set", hint=hint
                )


def check_lease_seconds(seconds: float) -> None:
    """Check the duration of a lease."""
    if not LEASE_SECONDS_MIN <= seconds <= LEASE_SECONDS_MAX:
        bounds = f"between {LEASE_SECONDS_MIN:g} and {LEASE_SECONDS_MAX:g}"
        raise SettingsError(f"INGOT_LEASE_SECONDS must be {bounds}, got {seconds}")


def check_logs(level: str, log_format: str | None) -> None:
    """Check the level and the format of logs."""
    if level not in LEVELS:
        raise SettingsError(f"INGOT_LOG_LEVEL must be one of {', '.join(LEVELS)}, got {level!r}")
    if log_format is not None and log_format not in FORMATS:
        raise SettingsError(f"INGOT_LOG_FORMAT must be {' or '.join(FORMATS)}, got {log_format!r}")


def check_database_url(name: str, url: str | None) -> None:
    """Check that a URL is a PostgreSQL URL. The message does not show the URL, which can contain a password."""
    if url is not None and not url.startswith(DATABASE_SCHEMES):
        raise SettingsError(
            f"INGOT_{name.upper()} must begin with {DATABASE_SCHEMES[0]}",
            hint="Use a URL such as postgresql://role:password@host/database.",
        )


def check_provider(settings: Settings) -> None:
    """Check that the settings of an OpenID provider are complete, consistent and secure."""
    if settings.oidc_issuer is None:
        return
    if check_secure_url(settings.oidc_issuer, "INGOT_OIDC_ISSUER").path.rstrip("/").endswith(DISCOVERY_PATH):
        raise SettingsError(
            f"INGOT_OIDC_ISSUER must not end with {DISCOVERY_PATH}",
            hint="Remove that part. The server adds it to the issuer itself.",
        )
    if settings.callback_url is None:
        raise SettingsError(
            "INGOT_OIDC_ISSUER requires INGOT_PUBLIC_URL or INGOT_OIDC_REDIRECT_URL, and neither is set",
            hint="Set INGOT_PUBLIC_URL to the URL under which browsers reach this server.",
        )
    if settings.oidc_redirect_url is not None:
        redirect_url = check_secure_url(settings.oidc_redirect_url, "INGOT_OIDC_REDIRECT_URL")
        if settings.public_url is not None and redirect_url.netloc != urlsplit(settings.public_url).netloc:
            raise SettingsError(
                "INGOT_OIDC_REDIRECT_URL and INGOT_PUBLIC_URL must have the same host and port",
                hint="Unset INGOT_OIDC_REDIRECT_URL, or use the host of INGOT_PUBLIC_URL: cookies belong to one host.",
            )
    if settings.oidc_scopes and "openid" not in settings.oidc_scopes:
        raise SettingsError(
            "INGOT_OIDC_SCOPES must include openid",
            hint="Add openid. Without it, the provider does not identify the person who signs in.",
        )
    for name in ("oidc_allowed_groups", "oidc_admin_groups"):
        if "" in getattr(settings, name):
            raise SettingsError(
                f"{variable_name(name)} contains an empty group name",
                hint="Separate the groups with single commas, without a comma at the end.",
            )


def check_secure_url(url: str, name: str) -> SplitResult:
    """Return the parts of a URL that is https, or http on this machine.

    The messages do not show the URL, which can contain a secret.
    """
    hint = "Use a URL such as https://ingot.example.com. http is only allowed for 127.0.0.1, ::1 and localhost."
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise SettingsError(f"{name} is not a valid URL", hint=hint) from None
    if not host or not url.isascii() or not url.isprintable() or " " in url:
        raise SettingsError(f"{name} is not a valid URL", hint=hint)
    if not is_secure_url(parts):
        raise SettingsError(f"{name} must begin with https://", hint=hint)
    if "@" in parts.netloc or "?" in url or "#" in url:
        raise SettingsError(f"{name} must not contain a user name, a query or a fragment", hint=hint)
    return parts


def is_secure_url(parts: SplitResult) -> bool:
    """Return True if connections to this URL cannot be intercepted: https, or http on this machine."""
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))


def is_loopback(host: str) -> bool:
    """Return True if this host is a loopback address or `localhost`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_session_times(settings: Settings) -> None:
    """Check the durations of sessions and of tokens of people."""
    for name in SESSION_FIELDS:
        if not SESSION_SECONDS_MIN <= getattr(settings, name) <= SESSION_SECONDS_MAX:
            bounds = f"between {SESSION_SECONDS_MIN:.0f} and {SESSION_SECONDS_MAX:.0f}"
            raise SettingsError(f"{variable_name(name)} must be {bounds}, got {getattr(settings, name)}")
    if not 0 < settings.person_token_days <= PERSON_TOKEN_DAYS_MAX:
        bounds = f"greater than 0 and at most {PERSON_TOKEN_DAYS_MAX:g}"
        raise SettingsError(f"INGOT_PERSON_TOKEN_DAYS must be {bounds}, got {settings.person_token_days}")


def check_blob_limits(settings: Settings) -> None:
    """Check the limits and intervals of blobs."""
    for name, minimum, maximum in (
        ("max_blob_bytes", 1, MAX_BLOB_BYTES_LIMIT),
        ("spare_bytes", 0, SPARE_BYTES_MAX),
        ("collect_seconds", 1, COLLECT_SECONDS_MAX),
        ("scrub_bytes_per_second", 0, SCRUB_RATE_MAX),
    ):
        value = getattr(settings, name)
        if value is not None and not minimum <= value <= maximum:
            raise SettingsError(f"{variable_name(name)} must be between {minimum} and {maximum:.0f}, got {value}")
    if not GRACE_SECONDS_MIN <= settings.collect_grace_seconds <= GRACE_SECONDS_MAX:
        bounds = f"between {GRACE_SECONDS_MIN:.0f} and {GRACE_SECONDS_MAX:.0f}"
        raise SettingsError(
            f"INGOT_COLLECT_GRACE_SECONDS must be {bounds}, got {settings.collect_grace_seconds}",
            hint="With a bucket, signed download URLs are valid for at most 60 s less than this.",
        )


def check_secret_keys(settings: Settings) -> None:
    """Check each of the secret keys."""
    if settings.secret_key is not None:
        for key in filter(str.strip, KEY_SEPARATORS.split(settings.secret_key)):
            _check_secret_key(key.strip())


def _check_secret_key(text: str) -> None:
    """Check that a secret key is long and random: hex, or base64 in either alphabet. Messages do not show the key."""
    hint = "Create a key with: openssl rand -hex 32"
    try:
        key = bytes.fromhex(text)
    except ValueError:
        try:
            plain = text.rstrip("=").replace("-", "+").replace("_", "/")
            key = base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
        except (binascii.Error, ValueError):
            raise SettingsError("INGOT_SECRET_KEY must be hex or base64", hint=hint) from None
    if len(key) < SECRET_KEY_BYTES_MIN:
        raise SettingsError(
            f"INGOT_SECRET_KEY must have at least {SECRET_KEY_BYTES_MIN} bytes, got {len(key)} bytes", hint=hint
        )
    if len(set(key)) < SECRET_KEY_DISTINCT_BYTES_MIN:
        raise SettingsError("INGOT_SECRET_KEY must be random, got a key with many repeated bytes", hint=hint)


def check_bucket(settings: Settings) -> None:
    """Check the name, endpoints, region and prefix of a bucket."""
    if settings.s3_bucket is None:
        return
    if BUCKET_NAME.fullmatch(settings.s3_bucket) is None:
        raise SettingsError(
            f"INGOT_S3_BUCKET must be the name of a bucket, got {settings.s3_bucket!r}",
            hint="Use 3 to 63 lower-case letters, digits, dots and hyphens. INGOT_S3_ENDPOINT is for the URL.",
        )
    for name in BUCKET_ENDPOINT_FIELDS:
        if (url := getattr(settings, name)) is not None:
            _check_bucket_endpoint(url, variable_name(name))
    if BUCKET_REGION.fullmatch(settings.s3_region) is None:
        raise SettingsError("INGOT_S3_REGION must be the name of a region", hint="Use a name such as eu-central-1.")
    prefix = settings.s3_prefix
    if prefix is not None and (len(prefix) > BUCKET_PREFIX_CHARS_MAX or BUCKET_PREFIX.fullmatch(prefix) is None):
        raise SettingsError(
            f"INGOT_S3_PREFIX must be a folder in the bucket, got {prefix!r}",
            hint="Use a folder such as team/ingot: letters, digits, dots, hyphens and underscores between slashes.",
        )


def _check_bucket_endpoint(url: str, name: str) -> None:
    """Check the URL of an object store. The messages do not show the URL, which can contain a secret."""
    hint = "Use a URL such as https://s3.example.com, or unset it to use Amazon S3."
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise SettingsError(f"{name} is not a valid URL", hint=hint) from None
    if parts.scheme not in ("http", "https"):
        raise SettingsError(f"{name} must begin with http:// or https://", hint=hint)
    if not host or not url.isascii() or not url.isprintable() or " " in url:
        raise SettingsError(f"{name} is not a valid URL", hint=hint)
    if "@" in parts.netloc or "?" in url or "#" in url:
        raise SettingsError(f"{name} must not contain a user name, a query or a fragment", hint=hint)


def check_proxy(text: str) -> None:
    """Check that a trusted proxy is an IP address or a network."""
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        raise SettingsError(
            f"INGOT_TRUSTED_PROXIES must contain IP addresses or networks, got {text!r}",
            hint="Use IP addresses or networks such as 10.0.0.0/8, separated by commas. Host names are not allowed.",
        ) from None
    if "/" in text and network.network_address != ip_interface(text).ip:
        raise SettingsError(
            f"INGOT_TRUSTED_PROXIES contains {text!r}, which is neither a single address nor a whole network",
            hint=f"Use {network} for the network, or {text.partition('/')[0]} for the single address.",
        )


def variable_name(field: str) -> str:
    """Return the name of the environment variable of a setting."""
    return VARIABLE_NAMES.get(field, f"INGOT_{field.upper()}")
