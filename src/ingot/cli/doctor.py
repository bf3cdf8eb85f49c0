"""`ingot doctor`: check an installation and print a hint for each problem."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Final
from uuid import UUID

import httpx
import msgspec
import typer

from ingot.api.ops import VERSION
from ingot.cli.context import CommandContext, server_command
from ingot.cli.help_text import examples_epilog
from ingot.cli.output import current_time
from ingot.client.errors import NotIngot, ServerUnreachable, error_from_response
from ingot.client.retry_policy import RetryPolicy
from ingot.client.server_address import TOKEN_FILE, NoToken, ServerAddress, resolve_server_address
from ingot.client.synchronous.http import SyncHttp
from ingot.jobs.errors import ProtocolMismatch
from ingot.kernel.clock import to_datetime
from ingot.kernel.errors import IngotError, SchemaMismatch
from ingot.settings import (
    ClientSettings,
    Settings,
    find_setting_errors,
    find_unknown_variables,
    read_client_settings,
    read_settings,
)
from ingot.wire.people import Me
from ingot.wire.protocol import PROTOCOL
from ingot.wiring import store_checks

HEALTH_TIMEOUT_SECONDS: Final = 5.0
SKEW_SECONDS_MAX: Final = 2.0
HORIZON_SECONDS_MAX: Final = 60.0
FREE_BYTES_WARNING: Final = 1 << 30
FREE_BYTES_REQUIRED: Final = 64 << 20
SIMILARITY_MIN: Final = 0.75  # Minimum similarity between an unknown variable and the setting that is suggested.
TIME_ORDERED_UUID_VERSION: Final = 7
EXAMPLES: Final = ("ingot doctor", "ingot doctor --server https://ingot.example.com --token-file ~/ingot.token --json")


class CheckState(StrEnum):
    """The state of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check, with a hint unless the state is `ok`."""

    name: str
    state: CheckState
    detail: str
    hint: str | None = None


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all checks. `ok` is false if one has failed."""

    ok: bool
    checks: list[CheckResult]


class HealthResponse(msgspec.Struct, frozen=True):
    """The parts of the response of `/healthz` that are checked. Earlier versions have no protocol."""

    version: str
    protocol: int = 0
    oldest_protocol: int = 0


app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command(epilog=examples_epilog(*EXAMPLES))
@server_command
def doctor(context: CommandContext) -> None:
    """Check settings, data folder, database, bucket, server, clock, token and worker credential.

    Each problem is printed with a hint. The exit code is 1 if a check fails; warnings do not count.
    """
    checks: list[CheckResult] = []
    for check in _run_checks(context):
        checks.append(check)
        if not context.out.json:
            context.out.check(check.state, check.name, check.detail, check.hint)
    healthy = all(check.state is not CheckState.FAILED for check in checks)
    if context.out.json:
        context.out.json_document(DoctorReport(ok=healthy, checks=checks))
    if not healthy:
        raise typer.Exit(1)


def _run_checks(context: CommandContext) -> Iterator[CheckResult]:
    yield _ok("program", f"ingot {VERSION}, Python {platform.python_version()}")
    setting_errors = find_setting_errors()
    yield from (_failure_from_error("settings", error) for error in setting_errors)
    yield from (
        _unknown_setting(name, suggestion)
        for name, suggestion in find_unknown_variables(similarity_min=SIMILARITY_MIN).items()
    )
    if setting_errors:
        return  # The other checks would use the invalid settings.
    try:
        settings, client = read_settings(), read_client_settings()
    except IngotError as error:  # A variable whose name is almost that of a setting.
        yield _failure_from_error("settings", error)
        return
    yield _ok("settings", "all settings are valid")
    yield from _check_data_folder(settings)
    if settings.database_url is not None:
        yield from _check_database(settings)
    else:
        yield from _check_stored_times(settings)
    if settings.s3_bucket is not None:
        yield _check_bucket(settings)
    yield from _check_server(context, client)


def _unknown_setting(name: str, suggestion: str | None) -> CheckResult:
    hint = "Remove it, or find the correct name in docs/reference/settings.md."
    detail = f"{name} is not a setting"
    return _warning("settings", detail, hint if suggestion is None else f"Did you mean {suggestion}?")


# -- this machine -------------------------------------------------------------------------------------------


def _check_data_folder(settings: Settings) -> Iterator[CheckResult]:
    folder = settings.data.absolute()
    if not folder.exists():
        nearest = next(parent for parent in folder.parents if parent.exists())
        if os.access(nearest, os.W_OK | os.X_OK):
            yield _ok("data folder", f"{folder} does not exist yet; `ingot serve` creates it")
        else:
            yield _failure(
                "data folder",
                f"{folder} does not exist and cannot be created",
                "Set INGOT_DATA to a folder that you can write to.",
            )
        return
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        hint = "Give the user that runs `ingot serve` write access, or set INGOT_DATA to another folder."
        yield _failure("data folder", f"{folder} cannot be written to: {error.strerror}", hint)
        return
    yield _check_free_space(folder, settings)
    token_file = folder / TOKEN_FILE
    if token_file.exists() and stat.S_IMODE(token_file.stat().st_mode) & 0o077:
        yield _warning("data folder", f"other users can read {token_file}", f"Run: chmod 600 {token_file}")


def _check_free_space(folder: Path, settings: Settings) -> CheckResult:
    free = shutil.disk_usage(folder).free
    detail = f"{folder} is writable, {free / (1 << 30):.1f} GiB free"
    if free < FREE_BYTES_REQUIRED:
        return _failure("data folder", detail, "Free some space. The server cannot write without it.")
    try:
        store_checks.check_free_space(settings)
    except IngotError:
        hint = "Free some space, or lower INGOT_SPARE_BYTES. Until then the server does not accept files."
        return _failure("data folder", detail, hint)
    if free < FREE_BYTES_WARNING:
        return _warning("data folder", detail, "Free some space before the disk is full.")
    return _ok("data folder", detail)


def _check_database(settings: Settings) -> Iterator[CheckResult]:
    try:
        risks = asyncio.run(store_checks.check_database(settings))
    except IngotError as error:
        yield _failure_from_error("database", error)
        return
    yield _ok("database", f"the role of INGOT_DATABASE_URL can be used by a {'server' if risks else 'worker'}")
    if risks is None:
        return
    if risks.oldest_seconds > HORIZON_SECONDS_MAX:
        yield _warning(
            "database",
            f"a transaction that has been open for {risks.oldest_seconds:.0f} s holds back the events of all tenants",
            "Find it in pg_stat_activity or pg_prepared_xacts, and end it.",
        )
    if risks.unlimited_roles:
        yield _warning(
            "database",
            f"servers cannot end long transactions of these roles: {', '.join(risks.unlimited_roles)}",
            "As a superuser, run GRANT pg_signal_backend, pg_read_all_stats TO ingot_owner.",
        )
    if risks.can_prepare:
        yield _warning(
            "database",
            "max_prepared_transactions is above 0, and servers cannot end prepared transactions",
            "Set it to 0 unless an application needs them. They hold back the events of all tenants.",
        )


def _check_stored_times(settings: Settings) -> Iterator[CheckResult]:
    try:
        seconds = store_checks.seconds_ahead(settings)
    except IngotError as error:
        yield _failure_from_error("database", error)
        return
    if seconds:
        detail = f"the newest time in the database is {timedelta(seconds=round(seconds))} ahead of this machine's clock"
        yield _warning(
            "database",
            detail,
            "If this machine's clock is wrong, correct it and restart the server. If it was wrong earlier, jobs that "
            "were given a delay at that time start late, unless their run_at is changed.",
        )


def _check_bucket(settings: Settings) -> CheckResult:
    try:
        asyncio.run(store_checks.check_bucket(settings))
    except IngotError as error:
        return _failure_from_error("bucket", error)
    return _ok("bucket", f"objects in {settings.s3_bucket} can be written, read and listed")


# -- the server ---------------------------------------------------------------------------------------------


def _check_server(context: CommandContext, client: ClientSettings) -> Iterator[CheckResult]:
    try:
        address = resolve_server_address(context.server, token="none", settings=client)
        response, health = _request_health(address.url)
    except IngotError as error:
        yield _failure_from_error("server", error)
        return
    yield _ok("server", f"{address.url} responds")
    if health.version == VERSION:
        yield _ok("version", f"server and client have version {VERSION}")
    else:
        hint = "Install the same version on both."
        yield _warning("version", f"the server has version {health.version}, the client {VERSION}", hint)
    yield _check_protocol(health)
    yield _check_clock(_server_time(response))
    yield _check_token(context, client)
    if client.worker_id is not None or client.worker_secret is not None:
        yield _check_worker_credential(context, client)


def _request_health(url: str) -> tuple[httpx.Response, HealthResponse]:
    try:
        response = httpx.get(f"{url}/healthz", timeout=HEALTH_TIMEOUT_SECONDS, trust_env=False)
        if response.status_code == SchemaMismatch.status:
            raise error_from_response(response.status_code, response.content)
        return response, msgspec.json.decode(response.raise_for_status().content, type=HealthResponse)
    except (httpx.HTTPStatusError, httpx.DecodingError, msgspec.DecodeError, UnicodeDecodeError):
        raise NotIngot(f"the server at {url} is not an Ingot server") from None
    except httpx.HTTPError as error:
        raise ServerUnreachable(f"{url} does not respond: {str(error) or type(error).__name__}") from None


def _check_protocol(health: HealthResponse) -> CheckResult:
    """Check that workers of this program can use the server."""
    oldest, newest = health.oldest_protocol, health.protocol
    supported = f"{oldest} to {newest}" if oldest < newest else f"{newest}"
    if oldest <= PROTOCOL <= newest:
        return _ok("protocol", f"the server supports worker protocol {supported}, this program uses {PROTOCOL}")
    detail = f"this program uses worker protocol {PROTOCOL}, the server supports {supported if newest else 'none'}"
    return _failure("protocol", detail, ProtocolMismatch.hint)


def _server_time(response: httpx.Response) -> datetime | None:
    """Read the server's time from the request ID, a UUIDv7. Return `None` if a proxy has set another ID."""
    try:
        request_id = UUID(response.headers.get("x-request-id", ""))
    except ValueError:
        return None
    return to_datetime((request_id.int >> 80) * 1000) if request_id.version == TIME_ORDERED_UUID_VERSION else None


def _check_clock(server_time: datetime | None) -> CheckResult:
    if server_time is None:
        return _warning("clock", "the server's time is unknown", "Compare the output of `date` on both machines.")
    skew = (current_time() - server_time).total_seconds()
    if abs(skew) <= SKEW_SECONDS_MAX:
        return _ok("clock", f"within {SKEW_SECONDS_MAX:g} s of the server's clock")
    detail = f"this machine's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the server's"
    return _warning(
        "clock", detail, "Synchronize both clocks with NTP. Until then, relative times such as 2h are wrong."
    )


def _check_token(context: CommandContext, client: ClientSettings) -> CheckResult:
    try:
        me = _fetch_caller(
            resolve_server_address(context.server, token=context.token, tenant=context.tenant, settings=client)
        )
    except NoToken as error:
        if client.worker_id is not None:
            return _ok("token", "not set; a worker with a credential does not need one")
        return _failure_from_error("token", error)
    except IngotError as error:
        hint = "Check INGOT_TOKEN, --token-file and the tenant. `ingot tokens create` creates a token."
        return _failure_from_error("token", error, hint=hint)
    actions = ", ".join(sorted({grant.action for grant in me.grants})) or "none"
    return _ok("token", f"{_caller_text(me)}; grants: {actions}")


def _check_worker_credential(context: CommandContext, client: ClientSettings) -> CheckResult:
    if client.worker_id is None or client.worker_secret is None:
        present, missing = ("ID", "SECRET") if client.worker_secret is None else ("SECRET", "ID")
        return _failure(
            "worker credential",
            f"INGOT_WORKER_{present} is set, but INGOT_WORKER_{missing} is not",
            "Set both to the values that `ingot workers credentials create` prints.",
        )
    try:
        me = _fetch_caller(
            resolve_server_address(context.server, worker=(client.worker_id, client.worker_secret), settings=client)
        )
    except IngotError as error:
        hint = (
            "To replace a lost secret, use `ingot workers credentials regenerate`. "
            "To enable a disabled credential, use `ingot workers credentials enable`."
        )
        return _failure_from_error("worker credential", error, hint=hint)
    return _ok("worker credential", _caller_text(me))


def _fetch_caller(address: ServerAddress) -> Me:
    http = SyncHttp(address, RetryPolicy(retry_seconds=0))
    try:
        return http.request("GET", "/me", Me)
    finally:
        http.close()


def _caller_text(me: Me) -> str:
    kind = "operator token" if me.operator and me.kind == "token" else me.kind
    return f"{kind} {me.id} in tenant {me.slug}" if me.slug is not None else f"{kind} {me.id} for all tenants"


# -- results ----------------------------------------------------------------------------------------


def _ok(name: str, detail: str) -> CheckResult:
    return CheckResult(name=name, state=CheckState.OK, detail=detail)


def _warning(name: str, detail: str, hint: str) -> CheckResult:
    return CheckResult(name=name, state=CheckState.WARNING, detail=detail, hint=hint)


def _failure(name: str, detail: str, hint: str) -> CheckResult:
    return CheckResult(name=name, state=CheckState.FAILED, detail=detail, hint=hint)


def _failure_from_error(name: str, error: IngotError, *, hint: str | None = None) -> CheckResult:
    return _failure(name, error.detail, hint or error.hint)
