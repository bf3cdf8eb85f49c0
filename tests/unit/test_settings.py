"""Settings: read from the environment, and checked individually and together."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from ingot.settings import (
    ClientSettings,
    Settings,
    SettingsError,
    find_setting_errors,
    find_unknown_variables,
    read_client_settings,
    read_settings,
    variable_name,
)

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"


def test_an_empty_environment_gives_the_defaults() -> None:
    assert read_settings({}) == Settings(data=Path("data"), lease_seconds=30.0)


def test_variables_are_read() -> None:
    environment = {"INGOT_DATA": "/srv/ingot", "INGOT_LEASE_SECONDS": "90.5", "OTHER": "x"}
    assert read_settings(environment) == Settings(data=Path("/srv/ingot"), lease_seconds=90.5)


def test_database_settings_are_read() -> None:
    environment = {
        "INGOT_DATABASE_URL": "postgresql://ingot_server@db/ingot",
        "INGOT_DATABASE_OWNER_URL": "postgres://admin@db/ingot",
        "INGOT_DATABASE_POOLED": "Yes",
    }
    settings = read_settings(environment)
    assert settings.database_url == "postgresql://ingot_server@db/ingot"
    assert settings.database_owner_url == "postgres://admin@db/ingot"
    assert settings.database_pooled is True


@pytest.mark.parametrize("name", ["INGOT_DATABASE_URL", "INGOT_DATABASE_OWNER_URL"])
@pytest.mark.parametrize("url", ["mysql://secret@db/ingot", "db.example.com", "/var/lib/ingot"])
def test_a_url_of_another_database_system_is_rejected_without_showing_it(name: str, url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings({name: url})
    assert name in caught.value.detail
    assert url not in caught.value.detail


def test_an_owner_url_without_a_database_url_is_rejected() -> None:
    with pytest.raises(SettingsError, match="requires INGOT_DATABASE_URL"):
        read_settings({"INGOT_DATABASE_OWNER_URL": "postgresql://admin@db/ingot"})


@pytest.mark.parametrize("name", ["INGOT_DATABSE_URL", "INGOT_DATABASEURL", "INGOT_LEASE_SECOND"])
def test_a_misspelled_variable_is_rejected(name: str) -> None:
    with pytest.raises(SettingsError, match=rf"{name} is not a setting.* INGOT_"):
        read_settings({name: "x"})


def test_unrelated_variables_are_ignored() -> None:
    assert read_settings({"INGOT_TEST_POSTGRES_URL": "x", "INGOT_THEME": "dark"}) == Settings()


def test_an_invalid_flag_is_rejected() -> None:
    with pytest.raises(SettingsError, match="INGOT_DATABASE_POOLED"):
        read_settings({"INGOT_DATABASE_POOLED": "maybe"})


def test_an_empty_variable_counts_as_unset() -> None:
    assert read_settings({"INGOT_DATA": "", "INGOT_LEASE_SECONDS": "", "INGOT_DATABASE_URL": ""}) == Settings()


@pytest.mark.parametrize("text", ["soon", "1,5", "0", "-1", "0.99", "nan", "inf", "-inf", "1e300", "86401"])
def test_an_invalid_lease_is_rejected_by_name(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings({"INGOT_LEASE_SECONDS": text})
    assert "INGOT_LEASE_SECONDS" in caught.value.detail
    assert caught.value.hint


@pytest.mark.parametrize("text", ["1", "180", "86400", "1e2"])
def test_a_lease_within_bounds_is_accepted(text: str) -> None:
    assert read_settings({"INGOT_LEASE_SECONDS": text}).lease_seconds == float(text)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Settings().lease_seconds = 1.0  # type: ignore[misc]


def test_host_and_port_are_read() -> None:
    settings = read_settings({"INGOT_HOST": "::1", "INGOT_PORT": "0"})
    assert (settings.host, settings.port) == ("::1", 0)


@pytest.mark.parametrize("text", ["http", "-1", "65536", "80.5", "８０"])
def test_an_invalid_port_is_rejected(text: str) -> None:
    with pytest.raises(SettingsError, match="INGOT_PORT"):
        read_settings({"INGOT_PORT": text})


def test_log_settings_are_read() -> None:
    settings = read_settings({"INGOT_LOG_LEVEL": "debug", "INGOT_LOG_FORMAT": "text"})
    assert (settings.log_level, settings.log_format) == ("debug", "text")
    worker_settings = read_client_settings({"INGOT_LOG_LEVEL": "warning", "INGOT_LOG_FORMAT": "json"})
    assert (worker_settings.log_level, worker_settings.log_format) == ("warning", "json")


@pytest.mark.parametrize(("name", "text"), [("INGOT_LOG_LEVEL", "loud"), ("INGOT_LOG_FORMAT", "xml")])
def test_an_invalid_log_setting_is_rejected(name: str, text: str) -> None:
    for read in (read_settings, read_client_settings):
        with pytest.raises(SettingsError, match=f"{name} .*'{text}'"):
            read({name: text})


def test_the_otel_endpoint_is_read_from_the_standard_variable() -> None:
    assert read_settings({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://host:4318"}).otel_endpoint == "http://host:4318"
    with pytest.raises(SettingsError, match="OTEL_EXPORTER_OTLP_ENDPOINT"):
        read_settings({"OTEL_EXPORTER_OTLP_ENDPOINT": "host:4317"})


def test_the_reference_page_lists_exactly_the_settings() -> None:
    documented = re.findall(r"^\| `([A-Z0-9_]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    fields = {*Settings.__struct_fields__, *ClientSettings.__struct_fields__}
    assert sorted(documented) == sorted(variable_name(field) for field in fields)


def test_limits_of_the_server_are_read() -> None:
    environment = {
        "INGOT_CONNECTIONS_MAX": "50",
        "INGOT_RATE_READ": "0.5",
        "INGOT_TRUSTED_PROXIES": "10.0.0.0/8, ::1",
    }
    settings = read_settings(environment)
    assert (settings.connections_max, settings.rate_read, settings.rate_write) == (50, 0.5, 2000.0)
    assert settings.trusted_proxies == ("10.0.0.0/8", "::1")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("INGOT_CONNECTIONS_MAX", "0"),
        ("INGOT_CONNECTIONS_MAX", "many"),
        ("INGOT_RATE_WRITE", "0"),
        ("INGOT_RATE_WAIT", "nan"),
        ("INGOT_RATE_READ", "fast"),
        ("INGOT_TRUSTED_PROXIES", "proxy.example.com"),
        ("INGOT_TRUSTED_PROXIES", "10.0.0.1/8"),
    ],
)
def test_an_invalid_limit_of_the_server_is_rejected(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=name):
        read_settings({name: text})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("proxy.example.com", "got 'proxy.example.com'"),
        ("10.0.0.1/8", "Use 10.0.0.0/8 for the network, or 10.0.0.1"),
        ("10.0.0.1,", "got ''"),
    ],
)
def test_an_invalid_proxy_is_reported_with_its_value(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings({"INGOT_TRUSTED_PROXIES": text})
    assert message in f"{caught.value.detail} {caught.value.hint}"


@pytest.mark.parametrize("seconds", ["0", "0.9", "86401", "nan"])
def test_the_limit_of_transactions_of_applications_has_bounds(seconds: str) -> None:
    assert read_settings({"INGOT_APP_TRANSACTION_SECONDS_MAX": "1.5"}).app_transaction_seconds_max == 1.5
    with pytest.raises(SettingsError, match="INGOT_APP_TRANSACTION_SECONDS_MAX"):
        read_settings({"INGOT_APP_TRANSACTION_SECONDS_MAX": seconds})


def test_the_event_retention_is_read() -> None:
    assert read_settings({}).event_retention_days == 30
    assert read_settings({"INGOT_EVENT_RETENTION_DAYS": "0"}).event_retention_days == 0
    assert read_settings({"INGOT_EVENT_RETENTION_DAYS": "7.5"}).event_retention_days == 7.5


@pytest.mark.parametrize("days", ["-1", "40000", "nan", "a week"])
def test_an_invalid_event_retention_is_rejected(days: str) -> None:
    with pytest.raises(SettingsError, match="INGOT_EVENT_RETENTION_DAYS"):
        read_settings({"INGOT_EVENT_RETENTION_DAYS": days})


OIDC = {
    "INGOT_OIDC_ISSUER": "https://login.example.com/realms/a/",
    "INGOT_OIDC_CLIENT_ID": "ingot",
    "INGOT_PUBLIC_URL": "https://ingot.example.com/",
}


def test_provider_settings_are_read() -> None:
    settings = read_settings(
        OIDC
        | {
            "INGOT_OIDC_CLIENT_SECRET": "s",
            "INGOT_OIDC_ALLOWED_GROUPS": "staff, night shift",
            "INGOT_OIDC_ADMIN_GROUPS": "ops",
            "INGOT_OIDC_GROUPS_CLAIM": "roles",
            "INGOT_OIDC_SCOPES": "openid email,roles",
        }
    )
    assert settings.oidc_issuer == "https://login.example.com/realms/a/"
    assert settings.public_url == "https://ingot.example.com"
    assert (settings.oidc_client_id, settings.oidc_client_secret) == ("ingot", "s")
    assert settings.oidc_allowed_groups == ("staff", "night shift")
    assert settings.oidc_admin_groups == ("ops",)
    assert settings.oidc_groups_claim == "roles"
    assert settings.oidc_scopes == ("openid", "email", "roles")


def test_the_callback_url_is_below_the_public_url_by_default() -> None:
    other = {"INGOT_OIDC_REDIRECT_URL": "https://other.example.com/auth/callback"}
    assert read_settings(OIDC).callback_url == "https://ingot.example.com/auth/callback"
    assert read_settings(OIDC | other | {"INGOT_PUBLIC_URL": ""}).callback_url == other["INGOT_OIDC_REDIRECT_URL"]
    assert read_settings({}).callback_url is None
    with pytest.raises(SettingsError, match="INGOT_OIDC_REDIRECT_URL and INGOT_PUBLIC_URL"):
        read_settings(OIDC | other)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9000", "http://localhost", "http://[::1]:80", "https://a.b:8443"])
def test_a_provider_url_needs_https_except_on_this_machine(url: str) -> None:
    settings = read_settings(OIDC | {"INGOT_OIDC_ISSUER": url, "INGOT_PUBLIC_URL": url})
    assert (settings.oidc_issuer, settings.public_url) == (url, url)


@pytest.mark.parametrize("name", ["INGOT_OIDC_ISSUER", "INGOT_PUBLIC_URL", "INGOT_OIDC_REDIRECT_URL"])
@pytest.mark.parametrize(
    "url",
    [
        "http://login.example.com",
        "http://127.0.0.1.example.com",
        "http://localhost.example.com",
        "ftp://127.0.0.1",
        "login.example.com",
        "https://",
        "https://a:b",
        "https://[::1",
        "https://user:hush@login.example.com",
        "https://login.example.com?x=hush",
        "https://login.example.com#x",
        "https://login.example.com/a b",
        "https://lögin.example.com",
    ],
)
def test_an_unsafe_url_is_rejected_without_showing_it(name: str, url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings(OIDC | {name: url})
    assert name in caught.value.detail
    assert "https" in caught.value.hint
    assert "hush" not in f"{caught.value.detail} {caught.value.hint}"


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"INGOT_OIDC_CLIENT_ID": ""}, "INGOT_OIDC_ISSUER requires INGOT_OIDC_CLIENT_ID"),
        (
            {"INGOT_OIDC_ISSUER": "https://login.example.com/.well-known/openid-configuration"},
            "/.well-known/openid-configuration",
        ),
        ({"INGOT_OIDC_ISSUER": ""}, "INGOT_OIDC_CLIENT_ID requires INGOT_OIDC_ISSUER"),
        ({"INGOT_PUBLIC_URL": ""}, "INGOT_OIDC_ISSUER requires INGOT_PUBLIC_URL or INGOT_OIDC_REDIRECT_URL"),
        ({"INGOT_PUBLIC_URL": "https://a.example.com/ingot"}, "INGOT_PUBLIC_URL must not have a path"),
        ({"INGOT_OIDC_SCOPES": "email"}, "INGOT_OIDC_SCOPES must include openid"),
        ({"INGOT_OIDC_ALLOWED_GROUPS": "staff,"}, "INGOT_OIDC_ALLOWED_GROUPS contains an empty group name"),
        ({"INGOT_OIDC_ADMIN_GROUPS": ","}, "INGOT_OIDC_ADMIN_GROUPS contains an empty group name"),
    ],
)
def test_incomplete_provider_settings_are_rejected(variables: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings(OIDC | variables)
    assert message in caught.value.detail
    assert caught.value.hint != SettingsError.hint


@pytest.mark.parametrize(
    "name",
    [
        "INGOT_OIDC_CLIENT_SECRET",
        "INGOT_OIDC_REDIRECT_URL",
        "INGOT_OIDC_ALLOWED_GROUPS",
        "INGOT_OIDC_ADMIN_GROUPS",
        "INGOT_OIDC_SCOPES",
    ],
)
def test_a_provider_setting_without_an_issuer_is_rejected(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} requires INGOT_OIDC_ISSUER"):
        read_settings({name: "openid"})


S3 = {"INGOT_S3_BUCKET": "ingot-blobs", "INGOT_S3_ACCESS_KEY": "AK1", "INGOT_S3_SECRET_KEY": "hush"}


def test_bucket_settings_are_read() -> None:
    variables = {
        "INGOT_S3_ENDPOINT": "http://store:9000/",
        "INGOT_S3_PUBLIC_ENDPOINT": "https://files.example.com/",
        "INGOT_S3_REGION": "eu-west-1",
        "INGOT_S3_PREFIX": "team/a.b",
    }
    settings = read_settings(S3 | variables)
    assert (settings.s3_bucket, settings.s3_access_key, settings.s3_secret_key) == ("ingot-blobs", "AK1", "hush")
    assert (settings.s3_endpoint, settings.s3_public_endpoint) == ("http://store:9000", "https://files.example.com")
    assert (settings.s3_region, settings.s3_prefix) == ("eu-west-1", "team/a.b/")
    assert (read_settings(S3).s3_endpoint, read_settings(S3).s3_region) == (None, "us-east-1")


@pytest.mark.parametrize("missing", ["INGOT_S3_BUCKET", "INGOT_S3_ACCESS_KEY", "INGOT_S3_SECRET_KEY"])
def test_incomplete_bucket_settings_are_rejected(missing: str) -> None:
    with pytest.raises(SettingsError, match=f"requires {missing}") as caught:
        read_settings(S3 | {missing: ""})
    assert caught.value.hint != SettingsError.hint


@pytest.mark.parametrize(
    "name", ["INGOT_S3_ENDPOINT", "INGOT_S3_PUBLIC_ENDPOINT", "INGOT_S3_PREFIX", "INGOT_S3_SECRET_KEY"]
)
def test_a_bucket_setting_without_a_bucket_is_rejected(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} requires INGOT_S3_BUCKET"):
        read_settings({name: "https://s3.example.com"})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("INGOT_S3_BUCKET", "ab"),
        ("INGOT_S3_BUCKET", "Files"),
        ("INGOT_S3_BUCKET", "https://s3.example.com"),
        ("INGOT_S3_BUCKET", "files/ours"),
        ("INGOT_S3_BUCKET", "-files"),
        ("INGOT_S3_ENDPOINT", "s3.example.com"),
        ("INGOT_S3_ENDPOINT", "ftp://s3.example.com"),
        ("INGOT_S3_ENDPOINT", "https://"),
        ("INGOT_S3_ENDPOINT", "https://a:b"),
        ("INGOT_S3_ENDPOINT", "https://me:hush@s3.example.com"),
        ("INGOT_S3_ENDPOINT", "https://s3.example.com?key=hush"),
        ("INGOT_S3_ENDPOINT", "https://s3.example.com/#x"),
        ("INGOT_S3_PUBLIC_ENDPOINT", "files.example.com"),
        ("INGOT_S3_PUBLIC_ENDPOINT", "https://me:hush@files.example.com"),
        ("INGOT_S3_REGION", "eu west"),
        ("INGOT_S3_PREFIX", "/ours"),
        ("INGOT_S3_PREFIX", "a//b"),
        ("INGOT_S3_PREFIX", "a/../b"),
        ("INGOT_S3_PREFIX", "a b"),
        ("INGOT_S3_PREFIX", "ä"),
        ("INGOT_S3_PREFIX", "a" * 200),
    ],
)
def test_an_invalid_bucket_setting_is_rejected_by_name(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=name) as caught:
        read_settings(S3 | {name: text})
    assert caught.value.hint != SettingsError.hint
    assert "hush" not in f"{caught.value.detail} {caught.value.hint}"


@pytest.mark.parametrize(
    ("name", "valid", "invalid"),
    [
        ("INGOT_MAX_BLOB_BYTES", ["1", str(5 * 1024**4)], ["0", "-1", "1e9", str(5 * 1024**4 + 1), "1 GB"]),
        ("INGOT_COLLECT_SECONDS", ["1", "30", "86400"], ["0", "0.5", "86401", "nan", "often"]),
        ("INGOT_COLLECT_GRACE_SECONDS", ["120", "1e6"], ["0", "119.9", "nan", "1e9"]),
        ("INGOT_SCRUB_BYTES_PER_SECOND", ["0", "1", "1000000000000"], ["-1", "1.5", "1000000000001", "fast"]),
    ],
)
def test_blob_settings_have_bounds(name: str, valid: list[str], invalid: list[str]) -> None:
    for text in valid:
        assert getattr(read_settings({name: text}), name.removeprefix("INGOT_").lower()) == float(text)
    for text in invalid:
        with pytest.raises(SettingsError, match=name):
            read_settings({name: text})


def test_the_secret_key_is_hex_or_base64() -> None:
    key = bytes(range(224, 256))
    text = base64.urlsafe_b64encode(key).decode()
    assert "_" in text
    for variables in (key.hex(), key.hex().upper(), text, text.rstrip("="), base64.b64encode(key).decode()):
        assert read_settings({"INGOT_SECRET_KEY": variables}).secret_key == variables
    assert read_settings({}).secret_key is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (bytes(range(31)).hex(), "got 31 bytes"),
        ("ab" * 32, "must be random"),
        ("correct horse battery staple, again and again", "hex or base64"),
        ("ä" * 64, "hex or base64"),
    ],
)
def test_an_invalid_secret_key_is_rejected_without_showing_it(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        read_settings({"INGOT_SECRET_KEY": text})
    assert text not in f"{caught.value.detail} {caught.value.hint}"
    assert "openssl rand -hex 32" in caught.value.hint


def test_settings_do_not_show_secrets() -> None:
    settings = read_settings(S3 | {"INGOT_SECRET_KEY": bytes(range(32)).hex()})
    assert "hush" not in repr(settings)
    assert bytes(range(32)).hex() not in repr(settings)
    assert "s3_bucket='ingot-blobs'" in repr(settings)


def test_all_invalid_variables_are_reported_at_once() -> None:
    environment = {"INGOT_PORT": "http", "INGOT_LEASE_SECONDS": "0", "INGOT_RATE_READ": "fast", "INGOT_DATA": "/srv"}
    names = [error.detail.split()[0] for error in find_setting_errors(environment)]
    assert sorted(names) == ["INGOT_LEASE_SECONDS", "INGOT_PORT", "INGOT_RATE_READ"]


def test_inconsistent_variables_are_reported_if_each_is_valid() -> None:
    (error,) = find_setting_errors({"INGOT_OIDC_ISSUER": "https://login.example.com"})
    assert "requires INGOT_OIDC_CLIENT_ID" in error.detail
    assert (
        find_setting_errors(OIDC | {"INGOT_THEME": "dark", "INGOT_SERVER_URL": "http://x", "INGOT_TENNANT": "x"}) == []
    )


@pytest.mark.parametrize("field", [*Settings.__struct_fields__])
def test_a_single_valid_setting_is_an_error_only_if_it_requires_another(field: str) -> None:
    valid = {"INGOT_LOG_FORMAT": "json", "INGOT_DATABASE_POOLED": "on", "INGOT_TRUSTED_PROXIES": "::1"}
    valid |= {"INGOT_SECRET_KEY": "k" * 32, "INGOT_SPARE_BYTES": "0"}
    default = getattr(Settings(), field)
    text = valid.get(variable_name(field)) or (str(default) if default not in (None, ()) else "https://example.com")
    if field in ("database_url", "database_owner_url"):
        text = "postgresql://db/ingot"
    if field == "secret_key":
        text = bytes(range(32)).hex()
    assert all(" requires INGOT_" in error.detail for error in find_setting_errors({variable_name(field): text}))


def test_an_unknown_variable_is_reported_with_the_most_similar_one() -> None:
    environment = {"INGOT_SERVER": "x", "INGOT_QQQQ": "x", "INGOT_PORT": "1", "OTHER": "x"}
    assert find_unknown_variables(environment, similarity_min=0.75) == {
        "INGOT_QQQQ": None,
        "INGOT_SERVER": "INGOT_SERVER_URL",
    }
