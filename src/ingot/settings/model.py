"""The settings of servers, clients and workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ingot.kernel.logs import LogFormat
from ingot.kernel.redaction import NoRepr
from ingot.settings.checks import (
    APP_TRANSACTION_SECONDS_LIMIT,
    BUFFERED_BYTES_MIN,
    CONNECTIONS_LIMIT,
    DATABASE_WAIT_SECONDS_MAX,
    EVENT_RETENTION_DAYS_MAX,
    LEASE_SECONDS,
    PORT_MAX,
    RATE_FIELDS,
    RATE_MAX,
    SettingsError,
    check_blob_limits,
    check_bucket,
    check_database_url,
    check_lease_seconds,
    check_logs,
    check_needs,
    check_provider,
    check_proxy,
    check_secret_keys,
    check_secure_url,
    check_session_times,
    variable_name,
)

CALLBACK_PATH = "/auth/callback"
SECRET_FIELDS = (
    "operator_token",
    "database_url",
    "database_owner_url",
    "oidc_client_secret",
    "otel_endpoint",
    "s3_secret_key",
    "secret_key",
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a server. Raises `SettingsError` if a value or a combination is invalid."""

    data: Path = Path("data")
    host: str = "127.0.0.1"
    port: int = 8080
    operator_token: str | None = None
    database_url: str | None = None
    database_owner_url: str | None = None
    database_pooled: bool = False
    database_wait_seconds: float = 60.0
    app_transaction_seconds_max: float = 300.0
    lease_seconds: float = LEASE_SECONDS
    log_level: str = "info"
    log_format: LogFormat | None = None
    otel_endpoint: str | None = None
    connections_max: int = 10_000
    buffered_bytes_max: int = 512 * 1024 * 1024
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
    spare_bytes: int | None = None
    collect_seconds: float = 30.0
    collect_grace_seconds: float = 4500.0
    scrub_bytes_per_second: int = 10_000_000
    secret_key: str | None = None

    def __post_init__(self) -> None:
        check_lease_seconds(self.lease_seconds)
        if not 0 <= self.port <= PORT_MAX:
            raise SettingsError(
                f"INGOT_PORT must be between 0 and {PORT_MAX}, got {self.port}", hint="Use 0 to select a free port."
            )
        check_logs(self.log_level, self.log_format)
        if self.otel_endpoint is not None and not self.otel_endpoint.startswith(("http://", "https://")):
            raise SettingsError("OTEL_EXPORTER_OTLP_ENDPOINT must begin with http:// or https://")
        if not 1 <= self.connections_max <= CONNECTIONS_LIMIT:
            bounds = f"between 1 and {CONNECTIONS_LIMIT}"
            raise SettingsError(f"INGOT_CONNECTIONS_MAX must be {bounds}, got {self.connections_max}")
        if self.buffered_bytes_max < BUFFERED_BYTES_MIN:
            raise SettingsError(
                f"INGOT_BUFFERED_BYTES_MAX must be at least {BUFFERED_BYTES_MIN}, got {self.buffered_bytes_max}"
            )
        for name in RATE_FIELDS:
            if not 0 < getattr(self, name) <= RATE_MAX:
                bounds = f"greater than 0 and at most {RATE_MAX:.0f}"
                raise SettingsError(f"{variable_name(name)} must be {bounds}, got {getattr(self, name)}")
        for proxy in self.trusted_proxies:
            check_proxy(proxy)
        if not 0 <= self.event_retention_days <= EVENT_RETENTION_DAYS_MAX:
            raise SettingsError(
                f"INGOT_EVENT_RETENTION_DAYS must be between 0 and {EVENT_RETENTION_DAYS_MAX:g},"
                f" got {self.event_retention_days}",
                hint="Use 0 to keep events forever.",
            )
        check_session_times(self)
        for name in ("database_url", "database_owner_url"):
            check_database_url(name, getattr(self, name))
        if not 0 <= self.database_wait_seconds <= DATABASE_WAIT_SECONDS_MAX:
            bounds = f"between 0 and {DATABASE_WAIT_SECONDS_MAX:g}"
            raise SettingsError(f"INGOT_DATABASE_WAIT_SECONDS must be {bounds}, got {self.database_wait_seconds}")
        if not 1 <= self.app_transaction_seconds_max <= APP_TRANSACTION_SECONDS_LIMIT:
            bounds = f"between 1 and {APP_TRANSACTION_SECONDS_LIMIT:g}"
            raise SettingsError(
                f"INGOT_APP_TRANSACTION_SECONDS_MAX must be {bounds}, got {self.app_transaction_seconds_max}"
            )
        check_needs(self)
        if self.public_url is not None and check_secure_url(self.public_url, "INGOT_PUBLIC_URL").path:
            raise SettingsError(
                "INGOT_PUBLIC_URL must not have a path",
                hint="Use a URL such as https://ingot.example.com, because cookies and links apply to the whole host.",
            )
        check_provider(self)
        check_blob_limits(self)
        check_secret_keys(self)
        check_bucket(self)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        values = [(name, getattr(self, name)) for name in self.__struct_fields__]
        return [(name, "…" if name in SECRET_FIELDS and value is not None else value) for name, value in values]

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    @property
    def callback_url(self) -> str | None:
        """The URL to which the provider redirects browsers after sign-in."""
        if self.oidc_redirect_url is None and self.public_url is not None:
            return self.public_url + CALLBACK_PATH
        return self.oidc_redirect_url


class ClientSettings(NoRepr, frozen=True, kw_only=True):
    """The settings of a client or worker. Raises `SettingsError` if a value is invalid."""

    server_url: str | None = None
    token: str | None = None
    tenant: str | None = None
    worker_id: str | None = None
    worker_secret: str | None = None
    data: Path = Path("data")
    database_url: str | None = None
    database_pooled: bool = False
    lease_seconds: float = LEASE_SECONDS
    log_level: str = "info"
    log_format: LogFormat | None = None
    embed_model: Path | None = None

    def __post_init__(self) -> None:
        check_lease_seconds(self.lease_seconds)
        check_logs(self.log_level, self.log_format)
        check_database_url("database_url", self.database_url)
