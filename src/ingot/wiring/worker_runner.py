"""A worker, with the server or the database that it comes to."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
from collections.abc import Callable
from typing import Final

import structlog
import uvloop

from ingot.client.server_address import resolve_server_address
from ingot.kernel.errors import IngotError, InvalidInput
from ingot.settings import ClientSettings, SettingsError, read_client_settings
from ingot.worker.app import Worker
from ingot.worker.hours import Hours
from ingot.worker.http_job_source import HttpFileClient, HttpJobSource
from ingot.worker.isolation import check_picklable
from ingot.worker.ports import JobSource
from ingot.worker.runner import DRAIN_SECONDS, Runner

FORCED_EXIT_CODE: Final = 130
log = structlog.get_logger("ingot.worker")


def build_runner(
    worker: Worker,
    settings: ClientSettings | None = None,
    *,
    drain_seconds: float = DRAIN_SECONDS,
    hours: Hours | None = None,
    echo: bool = False,
) -> Runner:
    """A runner of these handlers, with the server or the database that the settings name.

    To a database it comes with its role, to a server with a worker credential, or else with a token. Each process is an
    instance of its own. Raises `InvalidInput`, `SettingsError`, or what `find_place` does.
    """
    known = settings or read_client_settings()
    if not worker.handlers:
        raise InvalidInput("the worker has no handlers", hint='Give it some with @worker.handler("type").')
    for handler in worker.handlers.values():
        if handler.isolate:
            check_picklable(handler)
    if (known.worker_id is None) != (known.worker_secret is None):
        given, missing = ("SECRET", "ID") if known.worker_id is None else ("ID", "SECRET")
        raise SettingsError(
            f"INGOT_WORKER_{given} is set, and INGOT_WORKER_{missing} is not",
            hint="Set both, as they were shown when the credential was made, or neither, and INGOT_TOKEN.",
        )
    instance = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    if known.database_url is not None:
        board = _postgres_job_source(known, known.database_url, instance)
        desk = None if known.token is None else HttpFileClient(resolve_server_address(settings=known))
        return Runner(worker, board, drain_seconds=drain_seconds, hours=hours, echo=echo, file_client=desk)
    if known.worker_id is not None and known.worker_secret is not None:
        name = f"{known.worker_id}/{instance}"
        place = resolve_server_address(worker=(name, known.worker_secret), settings=known)
    else:
        name = instance
        place = resolve_server_address(settings=known)
    return Runner(
        worker,
        lambda: HttpJobSource(place, name),
        drain_seconds=drain_seconds,
        hours=hours,
        echo=echo,
        file_client=HttpFileClient(place),
    )


def _postgres_job_source(known: ClientSettings, url: str, instance: str) -> Callable[[], JobSource]:
    """How a worker comes to its database. `INGOT_SERVER_URL` beside it is for files, and clients that handlers make."""
    if known.worker_id is not None or known.worker_secret is not None:
        raise SettingsError(
            "INGOT_DATABASE_URL and a worker credential are both set; a worker comes with one of them",
            hint="Leave out INGOT_DATABASE_URL to work over HTTP, or INGOT_WORKER_ID and INGOT_WORKER_SECRET.",
        )
    from ingot.worker.postgres_job_source import PostgresJobSource, WorkerLogin  # noqa: PLC0415 - it takes long, and few need it

    entrance = WorkerLogin(url=url, instance=instance, lease_seconds=known.lease_seconds, pooled=known.database_pooled)
    return lambda: PostgresJobSource(entrance)


async def run_until_signal(runner: Runner) -> None:
    """Run it until TERM or Ctrl-C, which let it finish; a second one ends it at once."""
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()

    def told() -> None:
        if stopping.is_set():
            os._exit(FORCED_EXIT_CODE)
        stopping.set()

    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, told)
    await runner.run(stopping)
    if runner.is_busy:  # With a thread that does not end this process would not either.
        log.warning("handlers_left_behind", hint="Their jobs were given back. Have them look at job.canceled.")
        os._exit(0)


def run(worker: Worker, *, drain_seconds: float = DRAIN_SECONDS) -> None:
    """Run the handlers of a worker in this process until TERM or Ctrl-C, as `ingot worker` does."""
    runner = build_runner(worker, drain_seconds=drain_seconds)
    try:
        uvloop.run(run_until_signal(runner))
    except IngotError as error:
        if not runner.is_busy:
            raise
        log.error("worker_ended", code=error.code, detail=error.detail, hint=error.hint)
        os._exit(1)  # The error would reach nobody while threads go on that do not end.
