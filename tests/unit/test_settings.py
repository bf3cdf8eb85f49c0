"""Settings: read once from the environment, checked whole."""

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
    read_settings,
    variable_name,
)

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"


def test_an_empty_environment_gives_the_defaults() -> None:
    assert read_settings({}) == Settings(data=Path("data"), lease_seconds=180.0)


def test_variables_are_read() -> None:
    environment = {"INGOT_DATA": "/srv/ingot", "INGOT_LEASE_SECONDS": "90.5", "OTHER": "x"}
    assert read_settings(environment) == Settings(data=Path("/srv/ingot"), lease_seconds=90.5)


def test_a_database_is_read() -> None:
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
def test_another_kind_of_database_is_refused_without_showing_the_address(name: str, url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings({name: url})
    assert name in caught.value.detail
    assert url not in caught.value.detail


def test_an_owner_without_a_database_is_refused() -> None:
    with pytest.raises(SettingsError, match="requires INGOT_DATABASE_URL"):
        read_settings({"INGOT_DATABASE_OWNER_URL": "postgresql://admin@db/ingot"})


@pytest.mark.parametrize("name", ["INGOT_DATABSE_URL", "INGOT_DATABASEURL", "INGOT_LEASE_SECOND"])
def test_a_name_that_was_meant_to_be_ours_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=rf"{name} is not a setting.* INGOT_"):
        read_settings({name: "x"})


def test_other_names_are_nobodys_business() -> None:
    assert read_settings({"INGOT_TEST_POSTGRES_URL": "x", "INGOT_THEME": "dark"}) == Settings()


def test_a_flag_that_is_neither_yes_nor_no_is_refused() -> None:
    with pytest.raises(SettingsError, match="INGOT_DATABASE_POOLED"):
        read_settings({"INGOT_DATABASE_POOLED": "maybe"})


def test_an_empty_variable_is_one_that_is_not_set() -> None:
    assert read_settings({"INGOT_DATA": "", "INGOT_LEASE_SECONDS": "", "INGOT_DATABASE_URL": ""}) == Settings()


@pytest.mark.parametrize("text", ["soon", "1,5", "0", "-1", "0.99", "nan", "inf", "-inf", "1e300", "86401"])
def test_a_lease_that_cannot_be_used_is_refused_by_name(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings({"INGOT_LEASE_SECONDS": text})
    assert "INGOT_LEASE_SECONDS" in caught.value.detail
    assert caught.value.hint


@pytest.mark.parametrize("text", ["1", "180", "86400", "1e2"])
def test_a_lease_within_bounds_is_taken(text: str) -> None:
    assert read_settings({"INGOT_LEASE_SECONDS": text}).lease_seconds == float(text)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Settings().lease_seconds = 1.0  # type: ignore[misc]


def test_where_to_listen_is_read() -> None:
    settings = read_settings({"INGOT_HOST": "::1", "INGOT_PORT": "0"})
    assert (settings.host, settings.port) == ("::1", 0)


@pytest.mark.parametrize("text", ["http", "-1", "65536", "80.5", "８０"])
def test_a_port_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="INGOT_PORT"):
        read_settings({"INGOT_PORT": text})


def test_how_to_log_is_read() -> None:
    settings = read_settings({"INGOT_LOG_LEVEL": "debug", "INGOT_LOG_FORMAT": "text"})
    assert (settings.log_level, settings.log_format) == ("debug", "text")


@pytest.mark.parametrize(("name", "text"), [("INGOT_LOG_LEVEL", "loud"), ("INGOT_LOG_FORMAT", "xml")])
def test_a_log_that_cannot_be_is_refused(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} .*'{text}'"):
        read_settings({name: text})


def test_where_spans_go_is_read_by_the_name_that_everybody_knows() -> None:
    assert read_settings({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://host:4318"}).otel_endpoint == "http://host:4318"
    with pytest.raises(SettingsError, match="OTEL_EXPORTER_OTLP_ENDPOINT"):
        read_settings({"OTEL_EXPORTER_OTLP_ENDPOINT": "host:4317"})


def test_the_page_tells_of_every_setting_and_of_no_other() -> None:
    told = re.findall(r"^\| `([A-Z0-9_]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    fields = {*Settings.__struct_fields__, *ClientSettings.__struct_fields__}
    assert sorted(told) == sorted(variable_name(field) for field in fields)


def test_bounds_of_the_server_are_read() -> None:
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
def test_a_bound_that_is_none_is_refused(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=name):
        read_settings({name: text})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("proxy.example.com", "got 'proxy.example.com'"),
        ("10.0.0.1/8", "Use 10.0.0.0/8 for the network, or 10.0.0.1"),
        ("10.0.0.1,", "got ''"),
    ],
)
def test_a_proxy_that_is_none_is_told_with_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings({"INGOT_TRUSTED_PROXIES": text})
    assert said in f"{caught.value.detail} {caught.value.hint}"


def test_how_long_events_are_kept_is_read() -> None:
    assert read_settings({}).event_retention_days == 30
    assert read_settings({"INGOT_EVENT_RETENTION_DAYS": "0"}).event_retention_days == 0
    assert read_settings({"INGOT_EVENT_RETENTION_DAYS": "7.5"}).event_retention_days == 7.5


@pytest.mark.parametrize("days", ["-1", "40000", "nan", "a week"])
def test_a_retention_that_is_no_number_of_days_is_refused(days: str) -> None:
    with pytest.raises(SettingsError, match="INGOT_EVENT_RETENTION_DAYS"):
        read_settings({"INGOT_EVENT_RETENTION_DAYS": days})


OIDC = {
    "INGOT_OIDC_ISSUER": "https://login.example.com/realms/a/",
    "INGOT_OIDC_CLIENT_ID": "ingot",
    "INGOT_PUBLIC_URL": "https://ingot.example.com/",
}


def test_a_provider_is_read() -> None:
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


def test_people_come_back_to_the_public_address_unless_told_otherwise() -> None:
    other = {"INGOT_OIDC_REDIRECT_URL": "https://other.example.com/auth/callback"}
    assert read_settings(OIDC).callback_url == "https://ingot.example.com/auth/callback"
    assert read_settings(OIDC | other | {"INGOT_PUBLIC_URL": ""}).callback_url == other["INGOT_OIDC_REDIRECT_URL"]
    assert read_settings({}).callback_url is None
    with pytest.raises(SettingsError, match="INGOT_OIDC_REDIRECT_URL and INGOT_PUBLIC_URL"):
        read_settings(OIDC | other)


@pytest.mark.parametrize("place", ["http://127.0.0.1:9000", "http://localhost", "http://[::1]:80", "https://a.b:8443"])
def test_a_provider_is_trusted_over_https_or_on_this_machine(place: str) -> None:
    settings = read_settings(OIDC | {"INGOT_OIDC_ISSUER": place, "INGOT_PUBLIC_URL": place})
    assert (settings.oidc_issuer, settings.public_url) == (place, place)


@pytest.mark.parametrize("name", ["INGOT_OIDC_ISSUER", "INGOT_PUBLIC_URL", "INGOT_OIDC_REDIRECT_URL"])
@pytest.mark.parametrize(
    "place",
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
def test_a_place_that_cannot_be_trusted_is_refused_without_showing_it(name: str, place: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings(OIDC | {name: place})
    assert name in caught.value.detail
    assert "https" in caught.value.hint
    assert "hush" not in f"{caught.value.detail} {caught.value.hint}"


@pytest.mark.parametrize(
    ("given", "said"),
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
def test_half_of_a_provider_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings(OIDC | given)
    assert said in caught.value.detail
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
def test_a_part_of_a_provider_without_one_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} requires INGOT_OIDC_ISSUER"):
        read_settings({name: "openid"})


S3 = {"INGOT_S3_BUCKET": "ingot-blobs", "INGOT_S3_ACCESS_KEY": "AK1", "INGOT_S3_SECRET_KEY": "hush"}


def test_a_bucket_is_read() -> None:
    given = {
        "INGOT_S3_ENDPOINT": "http://store:9000/",
        "INGOT_S3_PUBLIC_ENDPOINT": "https://files.example.com/",
        "INGOT_S3_REGION": "eu-west-1",
        "INGOT_S3_PREFIX": "team/a.b",
    }
    settings = read_settings(S3 | given)
    assert (settings.s3_bucket, settings.s3_access_key, settings.s3_secret_key) == ("ingot-blobs", "AK1", "hush")
    assert (settings.s3_endpoint, settings.s3_public_endpoint) == ("http://store:9000", "https://files.example.com")
    assert (settings.s3_region, settings.s3_prefix) == ("eu-west-1", "team/a.b/")
    assert (read_settings(S3).s3_endpoint, read_settings(S3).s3_region) == (None, "us-east-1")


@pytest.mark.parametrize("missing", ["INGOT_S3_BUCKET", "INGOT_S3_ACCESS_KEY", "INGOT_S3_SECRET_KEY"])
def test_a_part_of_a_bucket_is_refused(missing: str) -> None:
    with pytest.raises(SettingsError, match=f"requires {missing}") as caught:
        read_settings(S3 | {missing: ""})
    assert caught.value.hint != SettingsError.hint


@pytest.mark.parametrize(
    "name", ["INGOT_S3_ENDPOINT", "INGOT_S3_PUBLIC_ENDPOINT", "INGOT_S3_PREFIX", "INGOT_S3_SECRET_KEY"]
)
def test_what_goes_with_a_bucket_is_refused_without_one(name: str) -> None:
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
def test_a_bucket_that_cannot_be_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=name) as caught:
        read_settings(S3 | {name: text})
    assert caught.value.hint != SettingsError.hint
    assert "hush" not in f"{caught.value.detail} {caught.value.hint}"


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("INGOT_MAX_BLOB_BYTES", ["1", str(5 * 1024**4)], ["0", "-1", "1e9", str(5 * 1024**4 + 1), "1 GB"]),
        ("INGOT_COLLECT_SECONDS", ["1", "30", "86400"], ["0", "0.5", "86401", "nan", "often"]),
        ("INGOT_COLLECT_GRACE_SECONDS", ["3660", "1e6"], ["0", "3600", "3659.9", "nan", "1e9"]),
        ("INGOT_SCRUB_BYTES_PER_SECOND", ["0", "1", "1000000000000"], ["-1", "1.5", "1000000000001", "fast"]),
    ],
)
def test_how_blobs_are_kept_has_bounds(name: str, good: list[str], bad: list[str]) -> None:
    for text in good:
        assert getattr(read_settings({name: text}), name.removeprefix("INGOT_").lower()) == float(text)
    for text in bad:
        with pytest.raises(SettingsError, match=name):
            read_settings({name: text})


def test_the_secret_is_hex_or_base64() -> None:
    key = bytes(range(224, 256))
    text = base64.urlsafe_b64encode(key).decode()
    assert "_" in text
    for given in (key.hex(), key.hex().upper(), text, text.rstrip("="), base64.b64encode(key).decode()):
        assert read_settings({"INGOT_SECRET_KEY": given}).secret_key == given
    assert read_settings({}).secret_key is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (bytes(range(31)).hex(), "got 31 bytes"),
        ("ab" * 32, "must be random"),
        ("correct horse battery staple, again and again", "hex or base64"),
        ("ä" * 64, "hex or base64"),
    ],
)
def test_a_secret_that_is_none_is_refused_without_showing_it(text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        read_settings({"INGOT_SECRET_KEY": text})
    assert text not in f"{caught.value.detail} {caught.value.hint}"
    assert "openssl rand -hex 32" in caught.value.hint


def test_what_is_signed_with_is_not_shown() -> None:
    settings = read_settings(S3 | {"INGOT_SECRET_KEY": bytes(range(32)).hex()})
    assert "hush" not in repr(settings)
    assert bytes(range(32)).hex() not in repr(settings)
    assert "s3_bucket='ingot-blobs'" in repr(settings)


def test_all_that_cannot_be_read_is_told_at_once() -> None:
    environment = {"INGOT_PORT": "http", "INGOT_LEASE_SECONDS": "0", "INGOT_RATE_READ": "fast", "INGOT_DATA": "/srv"}
    told = [error.detail.split()[0] for error in find_setting_errors(environment)]
    assert sorted(told) == ["INGOT_LEASE_SECONDS", "INGOT_PORT", "INGOT_RATE_READ"]


def test_what_does_not_go_together_is_told_when_each_can_be_read() -> None:
    (told,) = find_setting_errors({"INGOT_OIDC_ISSUER": "https://login.example.com"})
    assert "requires INGOT_OIDC_CLIENT_ID" in told.detail
    assert (
        find_setting_errors(OIDC | {"INGOT_THEME": "dark", "INGOT_SERVER_URL": "http://x", "INGOT_TENNANT": "x"}) == []
    )


@pytest.mark.parametrize("field", [*Settings.__struct_fields__])
def test_a_setting_alone_is_no_fault_unless_it_is_told_as_one_that_goes_with_others(field: str) -> None:
    good = {"INGOT_LOG_FORMAT": "json", "INGOT_DATABASE_POOLED": "on", "INGOT_TRUSTED_PROXIES": "::1"}
    good |= {"INGOT_SECRET_KEY": "k" * 32, "INGOT_SPARE_BYTES": "0"}
    default = getattr(Settings(), field)
    text = good.get(variable_name(field)) or (str(default) if default not in (None, ()) else "https://example.com")
    if field in ("database_url", "database_owner_url"):
        text = "postgresql://db/ingot"
    if field == "secret_key":
        text = bytes(range(32)).hex()
    assert all(" requires INGOT_" in error.detail for error in find_setting_errors({variable_name(field): text}))


def test_a_name_that_is_none_is_told_with_the_one_it_is_like() -> None:
    environment = {"INGOT_SERVER": "x", "INGOT_QQQQ": "x", "INGOT_PORT": "1", "OTHER": "x"}
    assert find_unknown_variables(environment, similarity_min=0.75) == {
        "INGOT_QQQQ": None,
        "INGOT_SERVER": "INGOT_SERVER_URL",
    }
