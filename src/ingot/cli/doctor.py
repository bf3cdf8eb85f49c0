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
from ingot.cli.asking import Asking, asking
from ingot.cli.output import now
from ingot.cli.teaching import examples
from ingot.client.errors import NotIngot, ServerUnreachable
from ingot.client.patience import Patience
from ingot.client.place import TOKEN_FILE, NoToken, Place, find_place
from ingot.client.synchronous.http import SyncHttp
from ingot.kernel.clock import to_datetime
from ingot.kernel.errors import IngotError
from ingot.settings import ClientSettings, Settings, faults, read_client_settings, read_settings, unknown_names
from ingot.wire.people import Me
from ingot.wiring import checking

ANSWER_SECONDS: Final = 5.0
SKEW_SECONDS_MAX: Final = 2.0
FREE_BYTES_MIN: Final = 1 << 30
FREE_BYTES_NEEDED: Final = 64 << 20
LIKENESS: Final = 0.75  # How like a name is that is offered instead of one that is none.
UUID_WITH_TIME: Final = 7
EXAMPLES: Final = ("ingot doctor", "ingot doctor --server https://ingot.example.com --token-file ~/ingot.token --json")


class State(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at, and what to do about it."""

    name: str
    state: State
    detail: str
    hint: str | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that was looked at."""

    ok: bool
    checks: list[Check]


app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command(epilog=examples(*EXAMPLES))
@asking
def doctor(ask: Asking) -> None:
    """Check settings, data folder, database, bucket, server, clock, token and worker credential, and say what to do.

    The exit code is 1 when a check failed; a warning is none.
    """
    checks: list[Check] = []
    for check in _checks(ask):
        checks.append(check)
        if not ask.out.json:
            ask.out.told(check.state, check.name, check.detail, check.hint)
    healthy = all(check.state is not State.FAILED for check in checks)
    if ask.out.json:
        ask.out.document(Report(ok=healthy, checks=checks))
    if not healthy:
        raise typer.Exit(1)


def _checks(ask: Asking) -> Iterator[Check]:
    yield _ok("program", f"ingot {VERSION}, Python {platform.python_version()}")
    wrong = faults()
    yield from (_failed("settings", error) for error in wrong)
    yield from (_unknown(name, meant) for name, meant in unknown_names(likeness=LIKENESS).items())
    if wrong:
        return  # What they lead to would be judged by the wrong ones.
    try:
        settings, client = read_settings(), read_client_settings()
    except IngotError as error:  # A name that is nearly one of ours.
        yield _failed("settings", error)
        return
    yield _ok("settings", "all that are set can be read")
    yield from _data(settings)
    if settings.database_url is not None:
        yield _database(settings)
    if settings.s3_bucket is not None:
        yield _bucket(settings)
    yield from _server(ask, client)


def _unknown(name: str, meant: str | None) -> Check:
    hint = "Remove it, or look in docs/reference/settings.md for its name."
    return _warning("settings", f"{name} is no setting", hint if meant is None else f"Perhaps {meant} is meant.")


# -- this machine -------------------------------------------------------------------------------------------


def _data(settings: Settings) -> Iterator[Check]:
    where = settings.data.absolute()
    if not where.exists():
        nearest = next(parent for parent in where.parents if parent.exists())
        if os.access(nearest, os.W_OK | os.X_OK):
            yield _ok("data folder", f"{where} is not there yet; `ingot serve` makes it")
        else:
            yield _bad(
                "data folder", f"{where} is not there and cannot be made", "Set INGOT_DATA to a folder of yours."
            )
        return
    try:
        with tempfile.TemporaryFile(dir=where):
            pass
    except OSError as error:
        hint = "Give the folder to the user that runs `ingot serve`, or set INGOT_DATA to another."
        yield _bad("data folder", f"{where} cannot be written to: {error.strerror}", hint)
        return
    yield _space(where, settings)
    token = where / TOKEN_FILE
    if token.exists() and stat.S_IMODE(token.stat().st_mode) & 0o077:
        yield _warning("data folder", f"others can read {token}", f"Run: chmod 600 {token}")


def _space(where: Path, settings: Settings) -> Check:
    free = shutil.disk_usage(where).free
    said = f"{where} can be written to, {free / (1 << 30):.1f} GiB are free"
    if free < FREE_BYTES_NEEDED:
        return _bad("data folder", said, "Free some space: nothing can be written without.")
    try:
        checking.check_room(settings)
    except IngotError:
        hint = "Delete files or free some space: until then no file is taken in (INGOT_SPARE_BYTES)."
        return _bad("data folder", said, hint)
    if free < FREE_BYTES_MIN:
        return _warning("data folder", said, "Free some space before it is used up.")
    return _ok("data folder", said)


def _database(settings: Settings) -> Check:
    try:
        found = asyncio.run(checking.check_database(settings))
    except IngotError as error:
        return _failed("database", error)
    return _ok("database", f"INGOT_DATABASE_URL can be worked with, as a {found}")


def _bucket(settings: Settings) -> Check:
    try:
        asyncio.run(checking.check_bucket(settings))
    except IngotError as error:
        return _failed("bucket", error)
    return _ok("bucket", f"{settings.s3_bucket} can be written to, read and listed")


# -- the server ---------------------------------------------------------------------------------------------


def _server(ask: Asking, client: ClientSettings) -> Iterator[Check]:
    try:
        place = find_place(ask.server, token="none", settings=client)
        answer, health = _ask_health(place.url)
    except IngotError as error:
        yield _failed("server", error)
        return
    yield _ok("server", f"{place.url} answers")
    if health.version == VERSION:
        yield _ok("version", f"server and client are {VERSION}")
    else:
        hint = "Bring both to the same version."
        yield _warning("version", f"the server is {health.version}, the client {VERSION}", hint)
    yield _clock(_time_of(answer))
    yield _token(ask, client)
    if client.worker_id is not None or client.worker_secret is not None:
        yield _worker(ask, client)


def _ask_health(url: str) -> tuple[httpx.Response, Health]:
    try:
        answer = httpx.get(f"{url}/healthz", timeout=ANSWER_SECONDS, trust_env=False)
        return answer, msgspec.json.decode(answer.raise_for_status().content, type=Health)
    except (httpx.HTTPStatusError, httpx.DecodingError, msgspec.DecodeError, UnicodeDecodeError):
        raise NotIngot(f"what answers at {url} is no Ingot server") from None
    except httpx.HTTPError as fault:
        raise ServerUnreachable(f"{url} does not answer: {str(fault) or type(fault).__name__}") from None


def _time_of(answer: httpx.Response) -> datetime | None:
    """The server's time: the ids it gives its answers hold it, unless somebody on the way gave another."""
    try:
        made = UUID(answer.headers.get("x-request-id", ""))
    except ValueError:
        return None
    return to_datetime((made.int >> 80) * 1000) if made.version == UUID_WITH_TIME else None


def _clock(there: datetime | None) -> Check:
    if there is None:
        return _warning("clock", "the server's time is not known", "Compare `date` here and there.")
    skew = (now() - there).total_seconds()
    if abs(skew) <= SKEW_SECONDS_MAX:
        return _ok("clock", f"the same as the server's, give or take {SKEW_SECONDS_MAX:g} s")
    said = f"this machine is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the server"
    return _warning("clock", said, "Set both by NTP: times given here mean others there.")


def _token(ask: Asking, client: ClientSettings) -> Check:
    try:
        me = _me(find_place(ask.server, token=ask.token, tenant=ask.tenant, settings=client))
    except NoToken as error:
        if client.worker_id is not None:
            return _ok("token", "there is none; a worker with a credential needs none")
        return _failed("token", error)
    except IngotError as error:
        return _failed(
            "token", error, hint="Check INGOT_TOKEN, --token-file and the tenant; `ingot tokens create` makes one."
        )
    return _ok("token", f"{_who(me)}; may {', '.join(sorted({grant.action for grant in me.grants})) or 'nothing'}")


def _worker(ask: Asking, client: ClientSettings) -> Check:
    if client.worker_id is None or client.worker_secret is None:
        given, missing = ("ID", "SECRET") if client.worker_secret is None else ("SECRET", "ID")
        return _bad(
            "worker credential",
            f"INGOT_WORKER_{given} is set, and INGOT_WORKER_{missing} is not",
            "Set both, as `ingot workers credentials create` writes them.",
        )
    try:
        me = _me(find_place(ask.server, worker=(client.worker_id, client.worker_secret), settings=client))
    except IngotError as error:
        hint = "`ingot workers credentials regenerate` makes another secret, `enable` lets it in again."
        return _failed("worker credential", error, hint=hint)
    return _ok("worker credential", _who(me))


def _me(place: Place) -> Me:
    http = SyncHttp(place, Patience(seconds=0))
    try:
        return http.ask("GET", "/me", Me)
    finally:
        http.close()


def _who(me: Me) -> str:
    what = "operator's token" if me.operator and me.kind == "token" else me.kind
    return f"{what} {me.id} in the tenant {me.slug}" if me.slug is not None else f"{what} {me.id} for all tenants"


# -- how it came out ----------------------------------------------------------------------------------------


def _ok(name: str, detail: str) -> Check:
    return Check(name=name, state=State.OK, detail=detail)


def _warning(name: str, detail: str, hint: str) -> Check:
    return Check(name=name, state=State.WARNING, detail=detail, hint=hint)


def _bad(name: str, detail: str, hint: str) -> Check:
    return Check(name=name, state=State.FAILED, detail=detail, hint=hint)


def _failed(name: str, error: IngotError, *, hint: str | None = None) -> Check:
    return _bad(name, error.detail, hint or error.hint)
