"""`ingot doctor`: whether all is as it should be, and what to do where it is not."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Final
from uuid import UUID

import httpx
import msgspec
import typer

from ingot.api.ops import VERSION, Health
from ingot.cli.context import CommandContext, server_command
from ingot.cli.help_text import examples_epilog
from ingot.cli.output import current_time
from ingot.client.errors import NotIngot, ServerUnreachable
from ingot.client.retry_policy import RetryPolicy
from ingot.client.server_address import TOKEN_FILE, NoToken, ServerAddress, resolve_server_address
from ingot.client.synchronous.http import SyncHttp
from ingot.kernel.clock import to_datetime
from ingot.kernel.errors import IngotError
from ingot.settings import (
    ClientSettings,
    Settings,
    find_setting_errors,
    find_unknown_variables,
    read_client_settings,
    read_settings,
)
from ingot.wire.people import Me
from ingot.wiring import store_checks

HEALTH_TIMEOUT_SECONDS: Final = 5.0
SKEW_SECONDS_MAX: Final = 2.0
FREE_BYTES_WARNING: Final = 1 << 30
FREE_BYTES_REQUIRED: Final = 64 << 20
SIMILARITY_MIN: Final = 0.75  # How like a name is that is offered instead of one that is none.
TIME_ORDERED_UUID_VERSION: Final = 7
EXAMPLES: Final = ("ingot doctor", "ingot doctor --server https://ingot.example.com --token-file ~/ingot.token --json")


class CheckState(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at, and what to do about it."""

    name: str
    state: CheckState
    detail: str
    hint: str | None = None


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    """All that was looked at."""

    ok: bool
    checks: list[CheckResult]


app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command(epilog=examples_epilog(*EXAMPLES))
@server_command
def doctor(ask: CommandContext) -> None:
    """Check settings, data folder, database, bucket, server, clock, token and worker credential, and say what to do.

    The exit code is 1 when a check failed; a warning is none.
    """
    checks: list[CheckResult] = []
    for check in _run_checks(ask):
        checks.append(check)
        if not ask.out.json:
            ask.out.check(check.state, check.name, check.detail, check.hint)
    healthy = all(check.state is not CheckState.FAILED for check in checks)
    if ask.out.json:
        ask.out.json_document(DoctorReport(ok=healthy, checks=checks))
    if not healthy:
        raise typer.Exit(1)


def _run_checks(ask: CommandContext) -> Iterator[CheckResult]:
    yield _ok("program", f"ingot {VERSION}, Python {platform.python_version()}")
    wrong = find_setting_errors()
    yield from (_failure_from_error("settings", error) for error in wrong)
    yield from (
        _unknown_setting(name, meant) for name, meant in find_unknown_variables(similarity_min=SIMILARITY_MIN).items()
    )
    if wrong:
        return  # What they lead to would be judged by the wrong ones.
    try:
        settings, client = read_settings(), read_client_settings()
    except IngotError as error:  # A name that is nearly one of ours.
        yield _failure_from_error("settings", error)
        return
    yield _ok("settings", "all that are set can be read")
    yield from _check_data_folder(settings)
    if settings.database_url is not None:
        yield _check_database(settings)
    if settings.s3_bucket is not None:
        yield _check_bucket(settings)
    yield from _check_server(ask, client)


def _unknown_setting(name: str, meant: str | None) -> CheckResult:
    hint = "Remove it, or look in docs/reference/settings.md for its name."
    return _warning("settings", f"{name} is no setting", hint if meant is None else f"Perhaps {meant} is meant.")


# -- this machine -------------------------------------------------------------------------------------------


def _check_data_folder(settings: Settings) -> Iterator[CheckResult]:
    where = settings.data.absolute()
    if not where.exists():
        nearest = next(parent for parent in where.parents if parent.exists())
        if os.access(nearest, os.W_OK | os.X_OK):
            yield _ok("data folder", f"{where} is not there yet; `ingot serve` makes it")
        else:
            yield _failure(
                "data folder", f"{where} is not there and cannot be made", "Set INGOT_DATA to a folder of yours."
            )
        return
    try:
        with tempfile.TemporaryFile(dir=where):
            pass
    except OSError as error:
        hint = "Give the folder to the user that runs `ingot serve`, or set INGOT_DATA to another."
        yield _failure("data folder", f"{where} cannot be written to: {error.strerror}", hint)
        return
    yield _check_free_space(where, settings)
    token = where / TOKEN_FILE
    if token.exists() and stat.S_IMODE(token.stat().st_mode) & 0o077:
        yield _warning("data folder", f"others can read {token}", f"Run: chmod 600 {token}")


def _check_free_space(where: Path, settings: Settings) -> CheckResult:
    free = shutil.disk_usage(where).free
    said = f"{where} can be written to, {free / (1 << 30):.1f} GiB are free"
    if free < FREE_BYTES_REQUIRED:
        return _failure("data folder", said, "Free some space: nothing can be written without.")
    try:
        store_checks.check_free_space(settings)
    except IngotError:
        hint = "Delete files or free some space: until then no file is taken in (INGOT_SPARE_BYTES)."
        return _failure("data folder", said, hint)
    if free < FREE_BYTES_WARNING:
        return _warning("data folder", said, "Free some space before it is used up.")
    return _ok("data folder", said)


def _check_database(settings: Settings) -> CheckResult:
    try:
        found = asyncio.run(store_checks.check_database(settings))
    except IngotError as error:
        return _failure_from_error("database", error)
    return _ok("database", f"INGOT_DATABASE_URL can be worked with, as a {found}")


def _check_bucket(settings: Settings) -> CheckResult:
    try:
        asyncio.run(store_checks.check_bucket(settings))
    except IngotError as error:
        return _failure_from_error("bucket", error)
    return _ok("bucket", f"{settings.s3_bucket} can be written to, read and listed")


# -- the server ---------------------------------------------------------------------------------------------


def _check_server(ask: CommandContext, client: ClientSettings) -> Iterator[CheckResult]:
    try:
        place = resolve_server_address(ask.server, token="none", settings=client)
        answer, health = _request_health(place.url)
    except IngotError as error:
        yield _failure_from_error("server", error)
        return
    yield _ok("server", f"{place.url} answers")
    if health.version == VERSION:
        yield _ok("version", f"server and client are {VERSION}")
    else:
        hint = "Bring both to the same version."
        yield _warning("version", f"the server is {health.version}, the client {VERSION}", hint)
    yield _check_clock(_server_time(answer))
    yield _check_token(ask, client)
    if client.worker_id is not None or client.worker_secret is not None:
        yield _check_worker_credential(ask, client)


def _request_health(url: str) -> tuple[httpx.Response, Health]:
    try:
        answer = httpx.get(f"{url}/healthz", timeout=HEALTH_TIMEOUT_SECONDS, trust_env=False)
        return answer, msgspec.json.decode(answer.raise_for_status().content, type=Health)
    except (httpx.HTTPStatusError, httpx.DecodingError, msgspec.DecodeError, UnicodeDecodeError):
        raise NotIngot(f"what answers at {url} is no Ingot server") from None
    except httpx.HTTPError as fault:
        raise ServerUnreachable(f"{url} does not answer: {str(fault) or type(fault).__name__}") from None


def _server_time(answer: httpx.Response) -> datetime | None:
    """The server's time: the ids it gives its answers hold it, unless somebody on the way gave another."""
    try:
        made = UUID(answer.headers.get("x-request-id", ""))
    except ValueError:
        return None
    return to_datetime((made.int >> 80) * 1000) if made.version == TIME_ORDERED_UUID_VERSION else None


def _check_clock(there: datetime | None) -> CheckResult:
    if there is None:
        return _warning("clock", "the server's time is not known", "Compare `date` here and there.")
    skew = (current_time() - there).total_seconds()
    if abs(skew) <= SKEW_SECONDS_MAX:
        return _ok("clock", f"the same as the server's, give or take {SKEW_SECONDS_MAX:g} s")
    said = f"this machine is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the server"
    return _warning("clock", said, "Set both by NTP: times given here mean others there.")


def _check_token(ask: CommandContext, client: ClientSettings) -> CheckResult:
    try:
        me = _fetch_caller(resolve_server_address(ask.server, token=ask.token, tenant=ask.tenant, settings=client))
    except NoToken as error:
        if client.worker_id is not None:
            return _ok("token", "there is none; a worker with a credential needs none")
        return _failure_from_error("token", error)
    except IngotError as error:
        return _failure_from_error(
            "token", error, hint="Check INGOT_TOKEN, --token-file and the tenant; `ingot tokens create` makes one."
        )
    return _ok(
        "token", f"{_caller_text(me)}; may {', '.join(sorted({grant.action for grant in me.grants})) or 'nothing'}"
    )


def _check_worker_credential(ask: CommandContext, client: ClientSettings) -> CheckResult:
    if client.worker_id is None or client.worker_secret is None:
        given, missing = ("ID", "SECRET") if client.worker_secret is None else ("SECRET", "ID")
        return _failure(
            "worker credential",
            f"INGOT_WORKER_{given} is set, and INGOT_WORKER_{missing} is not",
            "Set both, as `ingot workers credentials create` writes them.",
        )
    try:
        me = _fetch_caller(
            resolve_server_address(ask.server, worker=(client.worker_id, client.worker_secret), settings=client)
        )
    except IngotError as error:
        hint = "`ingot workers credentials regenerate` makes another secret, `enable` lets it in again."
        return _failure_from_error("worker credential", error, hint=hint)
    return _ok("worker credential", _caller_text(me))


def _fetch_caller(place: ServerAddress) -> Me:
    http = SyncHttp(place, RetryPolicy(retry_seconds=0))
    try:
        return http.request("GET", "/me", Me)
    finally:
        http.close()


def _caller_text(me: Me) -> str:
    what = "operator's token" if me.operator and me.kind == "token" else me.kind
    return f"{what} {me.id} in the tenant {me.slug}" if me.slug is not None else f"{what} {me.id} for all tenants"


# -- how it came out ----------------------------------------------------------------------------------------


def _ok(name: str, detail: str) -> CheckResult:
    return CheckResult(name=name, state=CheckState.OK, detail=detail)


def _warning(name: str, detail: str, hint: str) -> CheckResult:
    return CheckResult(name=name, state=CheckState.WARNING, detail=detail, hint=hint)


def _failure(name: str, detail: str, hint: str) -> CheckResult:
    return CheckResult(name=name, state=CheckState.FAILED, detail=detail, hint=hint)


def _failure_from_error(name: str, error: IngotError, *, hint: str | None = None) -> CheckResult:
    return _failure(name, error.detail, hint or error.hint)
