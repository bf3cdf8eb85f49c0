"""Test your handlers: a real server on a temporary file, jobs that run on request, and a clock that you control.

with testing.start(worker) as ingot:
    job = ingot.client.submit("greet", {"name": "Ada"})
    assert ingot.drain() == 1
    assert job.refresh().result == "Hello, Ada"
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, Final

import msgspec

from ingot.client import AsyncClient, Client
from ingot.client.errors import NotInTime
from ingot.client.job_request import Duration, to_seconds
from ingot.client.server_address import ServerAddress
from ingot.http.server import Server, listen, url_of
from ingot.http.server_thread import ServerThread
from ingot.kernel.clock import ManualClock, SystemClock, to_datetime
from ingot.kernel.errors import InvalidInput
from ingot.kernel.waits import wait_for
from ingot.settings import Settings
from ingot.wire.jobs import AttemptFailed, SettleResult
from ingot.wire.workers import JobHeartbeat, WorkerHeartbeatResponse
from ingot.wiring import api_server, services
from ingot.worker.app import Handler, Worker
from ingot.worker.http_job_source import HttpFileClient, HttpJobSource
from ingot.worker.isolation import Templates
from ingot.worker.job import WorkerJob
from ingot.worker.ports import ClaimedJob, ReportedOutcome
from ingot.worker.runner import Runner

__all__ = ["AsyncLocalIngot", "FakeClock", "HandlerFailed", "LocalIngot", "start", "start_async"]

WORKER_ID: Final = "testing"
DRAIN_SECONDS: Final = 30.0
ATTEMPTS_MAX: Final = 10_000
TIMEOUT_HINT: Final = "Pass a longer timeout to `drain`, or look for a handler that does not end."
IDLE_WAIT_SECONDS: Final = 0.05
# A handler can advance the clock by any amount while a heartbeat that was sent before its claim is still on the way. By
# that clock, the claim is old. The server must not release the job because the heartbeat does not name it.
GRACE_SECONDS: Final = 100 * 365 * 86_400.0
LEASE_SECONDS: Final = 180.0  # Long enough for handlers that advance the clock by a minute.
STOP_SECONDS: Final = 1.0  # How long running handlers have to end after a drain has timed out.


class HandlerFailed(Exception):
    """A job failed without an exception of its handler: it timed out, or ran in an isolated process."""


class FakeClock(ManualClock):
    """The clock of the server. It moves only when the test advances it."""

    def advance(self, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0) -> None:
        """Advance the clock. Due jobs run in the next `drain`."""
        super().advance(seconds=seconds + 60 * minutes + 3600 * hours, days=days)


@contextmanager
def start(*workers: Worker, now: datetime | None = None) -> Iterator[LocalIngot]:
    """Start a server on a temporary file, with the handlers of these workers.

    Its clock starts at `now`, by default the current time, and moves only with `clock.advance`.
    """
    with _TestServer(_clock_at(now)) as server, Client(server.url, token=server.token, tenant=server.tenant) as client:
        yield LocalIngot(server, _merge_workers(workers), client)


@asynccontextmanager
async def start_async(*workers: Worker, now: datetime | None = None) -> AsyncIterator[AsyncLocalIngot]:
    """Start a server for an async test. Async handlers run on the event loop of the test. See `start`."""
    server = _TestServer(_clock_at(now))
    await asyncio.to_thread(server.open)
    try:
        async with AsyncClient(server.url, token=server.token, tenant=server.tenant) as client:
            yield AsyncLocalIngot(server, _merge_workers(workers), client)
    finally:
        await asyncio.to_thread(server.close)


class _LocalIngotBase:
    def __init__(self, server: _TestServer, worker: Worker) -> None:
        self._server = server
        self._worker = worker

    @property
    def url(self) -> str:
        """URL of the server."""
        return self._server.url

    @property
    def token(self) -> str:
        """Operator token of the server."""
        return self._server.token

    @property
    def clock(self) -> FakeClock:
        """Clock of the server."""
        return self._server.clock

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with which `Client()` in the code under test finds the server."""
        return {"INGOT_SERVER_URL": self.url, "INGOT_TOKEN": self.token, "INGOT_TENANT": self._server.tenant}


class LocalIngot(_LocalIngotBase):
    """A server for a test, and handlers that run when `drain` is called."""

    def __init__(self, server: _TestServer, worker: Worker, client: Client) -> None:
        super().__init__(server, worker)
        self.client = client

    def drain(
        self, *, raise_errors: bool = False, timeout: Duration = DRAIN_SECONDS, attempts_max: int = ATTEMPTS_MAX
    ) -> int:
        """Run all jobs that are due, and those that become due meanwhile. Return the number of attempts.

        With `raise_errors`, the first error of a handler is raised at the end. Raises `NotInTime` after the timeout, in
        real time, or after more than `attempts_max` attempts.
        """
        _require_no_event_loop()
        return asyncio.run(_drain(self._server, self._worker, raise_errors, to_seconds(timeout), attempts_max))


class AsyncLocalIngot(_LocalIngotBase):
    """A server for an async test. See `LocalIngot`."""

    def __init__(self, server: _TestServer, worker: Worker, client: AsyncClient) -> None:
        super().__init__(server, worker)
        self.client = client

    async def drain(
        self, *, raise_errors: bool = False, timeout: Duration = DRAIN_SECONDS, attempts_max: int = ATTEMPTS_MAX
    ) -> int:
        """See `LocalIngot.drain`."""
        return await _drain(self._server, self._worker, raise_errors, to_seconds(timeout), attempts_max)


def _clock_at(now: datetime | None) -> FakeClock:
    return FakeClock(to_datetime(SystemClock().micros()) if now is None else now)


def _require_no_event_loop() -> None:
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise InvalidInput(
            "an event loop is already running in this thread", hint="Use `start_async` and await `drain`."
        )


def _merge_workers(workers: Sequence[Worker]) -> Worker:
    merged = Worker()
    for worker in workers:
        for handler in worker.handlers.values():
            merged.add(handler)
    return merged


# -- the server -------------------------------------------------------------------------------------------------------


class _TestServer:
    """A server in its own thread, so that a test or a handler that blocks does not block it."""

    url: str
    token: str
    tenant: str
    worker_address: ServerAddress

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.templates = Templates()  # Shared by all drains, because a template is slow to start.
        self._folder = tempfile.TemporaryDirectory(prefix="ingot-testing-")
        self._thread = ServerThread(self._serve, name="ingot-testing")

    def __enter__(self) -> _TestServer:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Start the server."""
        try:
            self._thread.start()
        except BaseException:
            self._folder.cleanup()
            raise

    def close(self) -> None:
        """Stop the server and delete its files."""
        with ExitStack() as callbacks:  # All of them run, even if one fails.
            callbacks.callback(self._folder.cleanup)
            callbacks.callback(self._thread.stop)
            callbacks.callback(self.templates.close)

    async def _serve(self, started: Callable[[Server], None]) -> None:
        settings = Settings(data=Path(self._folder.name), lease_seconds=LEASE_SECONDS)
        async with services.open(settings=settings, clock=self.clock, maintenance=False) as ingot:
            ingot.workers.grace_seconds = GRACE_SECONDS
            operator = await ingot.credentials.ensure_operator_token(None)
            assert operator is not None
            credential = await ingot.credentials.create_worker_credential(None, WORKER_ID)
            await services.define_built_in_types(ingot)
            with listen("127.0.0.1", 0) as listener:
                server = api_server.build_server(ingot, settings)
                self.url, self.token, self.tenant = url_of(listener), operator.text, ingot.default_tenant.slug
                headers = {"x-worker-id": WORKER_ID, "x-worker-secret": credential.secret}
                self.worker_address = ServerAddress(url=self.url, headers=headers)
                started(server)
                await server.serve(sockets=[listener])


# -- draining ---------------------------------------------------------------------------------------------------------


async def _drain(server: _TestServer, worker: Worker, raise_errors: bool, seconds: float, attempts_max: int) -> int:
    if not worker.handlers:
        return 0
    exceptions: dict[str, BaseException] = {}
    state = _DrainState(worker, attempts_max)
    runner = Runner(
        _capture_exceptions(worker, exceptions),
        lambda: _ObservedJobSource(server.worker_address, state),
        drain_seconds=STOP_SECONDS,
        file_client=HttpFileClient(server.worker_address),
        templates=server.templates,
    )
    stopping = asyncio.Event()
    run = asyncio.create_task(runner.run(stopping))
    drained = asyncio.create_task(state.done.wait())
    try:
        await asyncio.wait({run, drained}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        running_types, is_done = dict(state.running_types), drained.done()
    finally:
        drained.cancel()
        stopping.set()
        await run
    if not is_done:
        types = ", ".join(sorted(set(running_types.values()))) or "none"
        raise NotInTime(
            f"{len(running_types)} jobs are still running after {seconds:g} seconds, of types: {types}",
            hint=TIMEOUT_HINT,
        )
    if state.is_over_limit:
        raise NotInTime(
            f"more jobs are due after {attempts_max} attempts",
            hint="Look for a handler that submits its own type again, or raise `attempts_max`.",
        )
    if raise_errors and state.errors:
        raise _first_error(state.errors, exceptions)
    return state.attempts


def _first_error(errors: dict[str, str], exceptions: dict[str, BaseException]) -> BaseException:
    """Return the exception of the first failed job, given the error texts and the exceptions by job ID."""
    job_id, text = next(iter(errors.items()))
    error = exceptions.get(job_id) or HandlerFailed(text)
    error.add_note(f"The job is {job_id}.")
    if len(errors) > 1:
        error.add_note(f"{len(errors) - 1} more jobs failed.")
    return error


def _capture_exceptions(worker: Worker, exceptions: dict[str, BaseException]) -> Worker:
    """Return a worker with the same handlers that records their exceptions by job ID, except those of isolated ones."""
    capturing = Worker()
    for handler in worker.handlers.values():
        capturing.add(handler if handler.isolate else _capture_handler_exceptions(handler, exceptions))
    return capturing


def _capture_handler_exceptions(handler: Handler, exceptions: dict[str, BaseException]) -> Handler:
    @wraps(handler.function)
    def call(job: WorkerJob) -> Any:
        try:
            return handler.function(job)
        except BaseException as error:
            exceptions[job.id] = error
            raise

    @wraps(handler.function)
    async def call_async(job: WorkerJob) -> Any:
        try:
            return await handler.function(job)
        except BaseException as error:
            exceptions[job.id] = error
            raise

    return msgspec.structs.replace(handler, function=call_async if handler.is_async else call)


# The ID of a job, and the fence of the claim: a job can be claimed again before its previous outcome is recorded here.
_AttemptId = tuple[str, int]


class _DrainState:
    """The state of a drain: the running jobs, and the types that had no ready jobs since the last attempt ended."""

    def __init__(self, worker: Worker, attempts_max: int) -> None:
        self.done = asyncio.Event()
        self.attempts = 0
        self.completed_rounds = 0
        self.running_types: dict[_AttemptId, str] = {}
        self.errors: dict[str, str] = {}
        self._attempts_max = attempts_max
        self._rounds_at_empty_claim = dict.fromkeys(worker.handlers, -1)
        self._attempt_ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    @property
    def is_over_limit(self) -> bool:
        """Whether there were more than `attempts_max` attempts."""
        return self.attempts > self._attempts_max

    def record_claimed(self, claimed_jobs: Sequence[ClaimedJob]) -> None:
        """Record that these jobs are running."""
        self.attempts += len(claimed_jobs)
        self.running_types |= {(claimed.job.id, claimed.job.fence): claimed.job.type for claimed in claimed_jobs}
        if self.is_over_limit:
            self.done.set()

    def record_ended(self, attempts: Sequence[_AttemptId]) -> None:
        """Record that attempts have ended, which can make other jobs due. May be called from any thread."""
        self._loop.call_soon_threadsafe(self._remove_ended, attempts)

    def _remove_ended(self, attempts: Sequence[_AttemptId]) -> None:
        for attempt in attempts:
            self.running_types.pop(attempt, None)
        self.completed_rounds += 1
        self._attempt_ended.set()
        self._attempt_ended = asyncio.Event()

    async def record_empty_claim(self, type: str, rounds_before: int) -> None:
        """Record that a claim of this type, begun after `rounds_before` rounds, got no job. Wait before the next one.

        It waits until an attempt ends, but only briefly, because running handlers can submit jobs.
        """
        self._rounds_at_empty_claim[type] = rounds_before
        if not self.running_types and all(
            rounds == self.completed_rounds for rounds in self._rounds_at_empty_claim.values()
        ):
            self.done.set()
        if rounds_before == self.completed_rounds:
            await wait_for(self._attempt_ended, IDLE_WAIT_SECONDS)


class _ObservedJobSource:
    """A job source over HTTP that records claims and outcomes in the state of a drain. See `JobSource`."""

    def __init__(self, address: ServerAddress, state: _DrainState) -> None:
        self._source = HttpJobSource(address, WORKER_ID)
        self._state = state
        self.register = self._source.register
        self.drain = self._source.drain
        self.leave = self._source.leave
        self.close = self._source.close

    async def claim(self, type: str, *, limit: int, wait_seconds: float) -> list[ClaimedJob]:  # noqa: ARG002 - as in `JobSource`
        """See `JobSource`. Without a ready job, it waits until an attempt has ended."""
        rounds_before = self._state.completed_rounds
        claimed_jobs = await self._source.claim(type, limit=limit, wait_seconds=0)
        if claimed_jobs:
            self._state.record_claimed(claimed_jobs)
        else:
            await self._state.record_empty_claim(type, rounds_before)
        return claimed_jobs

    async def heartbeat(self, heartbeats: Sequence[JobHeartbeat], *, wait_seconds: float) -> WorkerHeartbeatResponse:
        """See `JobSource`."""
        response = await self._source.heartbeat(heartbeats, wait_seconds=wait_seconds)
        lost_ids = {job.id for job in response.jobs if job.lost}
        if lost_attempts := [(heartbeat.id, heartbeat.fence) for heartbeat in heartbeats if heartbeat.id in lost_ids]:
            self._state.record_ended(lost_attempts)
        return response

    async def settle(self, outcomes: Sequence[ReportedOutcome]) -> list[SettleResult]:
        """See `JobSource`."""
        results = await self._source.settle(outcomes)
        self._state.errors |= {outcome.id: outcome.error for outcome in outcomes if isinstance(outcome, AttemptFailed)}
        self._state.record_ended([(outcome.id, outcome.fence) for outcome in outcomes])
        return results
