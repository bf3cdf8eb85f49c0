"""Running a worker with the server or database in the settings."""

from __future__ import annotations

import asyncio
import logging
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
from ingot.kernel.hangup import log_hangups
from ingot.kernel.logs import configure_server_logs
from ingot.kernel.open_files import raise_open_files_limit
from ingot.settings import ClientSettings, SettingsError, read_client_settings
from ingot.worker.app import Worker
from ingot.worker.hours import Hours
from ingot.worker.http_job_source import HttpFileClient, HttpJobSource
from ingot.worker.isolation import check_picklable, network_obstacle
from ingot.worker.ports import JobSource
from ingot.worker.runner import DRAIN_SECONDS, Runner

FORCED_EXIT_CODE: Final = 130
RESERVED_FILES: Final = 100  # Open files of the runner and of libraries.
OPEN_NETWORK_HINT: Final = "Limit the network of the whole worker, for example in its container."
FILES_PER_JOB: Final = 9  # Pipes and sockets of an isolated job, and the transfer of a file.
FILES_HINT: Final = "To run them in this worker, set INGOT_SERVER_URL and INGOT_TOKEN."
log = structlog.get_logger("ingot.worker")


def build_runner(
    worker: Worker,
    settings: ClientSettings | None = None,
    *,
    drain_seconds: float = DRAIN_SECONDS,
    hours: Hours | None = None,
    echo: bool = False,
) -> Runner:
    """Build a runner for the handlers of a worker, with the server or database in the settings.

    It authenticates to a database with the role in its URL, and to a server with a worker credential or else a token.
    Each process is an instance of its own. Raises `InvalidInput`, `SettingsError`, and what `resolve_server_address`
    raises.
    """
    settings = settings or read_client_settings()
    if not worker.handlers:
        raise InvalidInput("the worker has no handlers", hint='Add handlers with @worker.handler("type").')
    for handler in worker.handlers.values():
        if handler.isolate:
            check_picklable(handler)
    _warn_of_open_network(worker)
    if (settings.worker_id is None) != (settings.worker_secret is None):
        present, missing = ("SECRET", "ID") if settings.worker_id is None else ("ID", "SECRET")
        raise SettingsError(
            f"INGOT_WORKER_{present} is set, but INGOT_WORKER_{missing} is not",
            hint="Set both to the values of the worker credential. To use INGOT_TOKEN instead, set neither.",
        )
    instance = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    if settings.database_url is not None:
        file_client = _file_client_beside_database(settings)
        job_source = _postgres_job_source(settings, settings.database_url, instance, with_files=file_client is not None)
        return Runner(worker, job_source, drain_seconds=drain_seconds, hours=hours, echo=echo, file_client=file_client)
    if settings.worker_id is not None and settings.worker_secret is not None:
        worker_id = f"{settings.worker_id}/{instance}"
        address = resolve_server_address(worker=(worker_id, settings.worker_secret), settings=settings)
    else:
        worker_id = instance
        address = resolve_server_address(settings=settings)
    return Runner(
        worker,
        lambda: HttpJobSource(address, worker_id),
        drain_seconds=drain_seconds,
        hours=hours,
        echo=echo,
        file_client=HttpFileClient(address),
    )


def _warn_of_open_network(worker: Worker) -> None:
    """Log a warning if this system cannot cut isolated handlers off from the network."""
    types = [handler.type for handler in worker.handlers.values() if handler.isolate and not handler.network]
    if types and (obstacle := network_obstacle()) is not None:
        log.warning("isolated_handlers_have_network", types=types, why=obstacle, hint=OPEN_NETWORK_HINT)


def _file_client_beside_database(settings: ClientSettings) -> HttpFileClient | None:
    """Return the file client of a worker with a database, or `None` if it has no server for files, which is logged."""
    if settings.server_url is None:
        missing = "INGOT_SERVER_URL is not set"
    else:
        address = resolve_server_address(settings=settings, allow_missing_token=True)
        if address.has_credentials:
            return HttpFileClient(address)
        missing = f"there is no token for {address.url}"
    text = f"Jobs with input files, or payloads above 64 KiB, are left to other workers: {missing}."
    log.warning("jobs_with_files_not_claimed", text=text, detail=missing, hint=FILES_HINT)
    return None


def _postgres_job_source(
    settings: ClientSettings, url: str, instance: str, *, with_files: bool
) -> Callable[[], JobSource]:
    """Return a function that creates the job source of a worker with a database.

    `INGOT_SERVER_URL` can be set as well: it is used for files, and by `Client()` in handlers.
    """
    if settings.worker_id is not None or settings.worker_secret is not None:
        raise SettingsError(
            "INGOT_DATABASE_URL and a worker credential cannot both be set",
            hint="Unset INGOT_DATABASE_URL to work over HTTP, or unset INGOT_WORKER_ID and INGOT_WORKER_SECRET.",
        )
    from ingot.worker.postgres_job_source import PostgresJobSource, WorkerLogin  # noqa: PLC0415 - slow to import and rarely needed

    login = WorkerLogin(
        url=url,
        instance=instance,
        lease_seconds=settings.lease_seconds,
        pooled=settings.database_pooled,
        with_files=with_files,
    )
    return lambda: PostgresJobSource(login)


async def run_until_signal(runner: Runner) -> None:
    """Run a worker until SIGTERM or Ctrl-C, which start a drain. A second signal ends the process at once.

    SIGHUP is ignored.
    """
    _raise_open_files_limit(runner.slots)
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()

    def handle_signal(received: signal.Signals) -> None:
        if stopping.is_set():
            os._exit(FORCED_EXIT_CODE)
        stopping.set()
        jobs, seconds = runner.running_jobs, runner.drain_seconds
        text = f"Stopping. {_jobs_text(jobs)} {seconds:g} s to finish." if jobs else "Stopping."
        log.info("stopping", text=text, signal=received.name, running_jobs=jobs, drain_seconds=seconds)

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, handle_signal, signal_number)
    with log_hangups():
        await runner.run(stopping)
    if runner.is_busy:  # Threads of handlers that have not returned would keep the process alive.
        log.warning("handlers_left_behind", hint="Their jobs were released. Handlers have to check job.canceled.")
        os._exit(0)


def _raise_open_files_limit(slots: int) -> None:
    limit = raise_open_files_limit()
    enough_for = max(1, (limit - RESERVED_FILES) // FILES_PER_JOB)
    if enough_for < slots:
        log.warning(
            "open_files_limited",
            detail=f"The limit of {limit} open files is enough for about {enough_for} running jobs. This worker "
            f"runs up to {slots}, and further jobs can fail with 'Too many open files'. Raise the hard limit "
            "(ulimit -Hn, or LimitNOFILE of systemd), or lower the concurrency of the handlers.",
            open_files_limit=limit,
            enough_for=enough_for,
            slots=slots,
        )


def _jobs_text(jobs: int) -> str:
    return "1 running job has" if jobs == 1 else f"{jobs} running jobs have"


def run(worker: Worker, *, drain_seconds: float = DRAIN_SECONDS) -> None:
    """Run the handlers of a worker in this process until SIGTERM or Ctrl-C, like `ingot worker`.

    Logs are configured like those of `ingot worker`. A configuration of structlog or `logging` by the program is kept.
    """
    settings = read_client_settings()
    if not structlog.is_configured():
        libraries = not logging.root.handlers
        configure_server_logs(settings.log_level, settings.log_format, libraries=libraries)
    runner = build_runner(worker, settings, drain_seconds=drain_seconds)
    try:
        uvloop.run(run_until_signal(runner))
    except IngotError as error:
        if not runner.is_busy:
            raise
        log.error("worker_ended", code=error.code, detail=error.detail, hint=error.hint)
        os._exit(1)  # The error would not be shown while threads of handlers keep the process alive.
