"""For tests of your own: the real server on a temporary file, your handlers run when you say so, time in your hands.

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
TIMEOUT_HINT: Final = "Give `drain` a longer timeout, or look for a handler that does not end."
IDLE_WAIT_SECONDS: Final = 0.05
# A handler can move the clock by any amount while a heartbeat sent before its claim is still on the way. By the clock
# that claim is old then, and the server must not take the job away because the heartbeat does not name it.
GRACE_SECONDS: Final = 100 * 365 * 86_400.0
STOP_SECONDS: Final = 1.0  # That what runs has to end when a drain takes too long.


class HandlerFailed(Exception):
    """A job failed, and there is no error of its handler: it took too long, or ran in a process of its own."""


class FakeClock(ManualClock):
    """The time of the server. It stands still until it is told to go on."""

    def advance(self, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0) -> None:
        """Let time pass."""
        super().advance(seconds=seconds + 60 * minutes + 3600 * hours, days=days)


@contextmanager
def start(*workers: Worker, now: datetime | None = None) -> Iterator[LocalIngot]:
    """A server of its own on a temporary file, for the handlers of these workers. Its time begins `now`, and stands."""
    with _TestServer(_clock_at(now)) as site, Client(site.url, token=site.token, tenant=site.tenant) as client:
        yield LocalIngot(site, _merge_workers(workers), client)


@asynccontextmanager
async def start_async(*workers: Worker, now: datetime | None = None) -> AsyncIterator[AsyncLocalIngot]:
    """The same for tests that await: async handlers run on the loop of the test."""
    site = _TestServer(_clock_at(now))
    await asyncio.to_thread(site.open)
    try:
        async with AsyncClient(site.url, token=site.token, tenant=site.tenant) as client:
            yield AsyncLocalIngot(site, _merge_workers(workers), client)
    finally:
        await asyncio.to_thread(site.close)


class _LocalIngotBase:
    def __init__(self, site: _TestServer, worker: Worker) -> None:
        self._server = site
        self._worker = worker

    @property
    def url(self) -> str:
        """Where the server is."""
        return self._server.url

    @property
    def token(self) -> str:
        """The operator's token."""
        return self._server.token

    @property
    def clock(self) -> FakeClock:
        """The time of the server."""
        return self._server.clock

    @property
    def environment(self) -> dict[str, str]:
        """What `Client()` finds the server by, in code under test too."""
        return {"INGOT_SERVER_URL": self.url, "INGOT_TOKEN": self.token, "INGOT_TENANT": self._server.tenant}


class LocalIngot(_LocalIngotBase):
    """A server, and handlers that run when `drain` is called."""

    def __init__(self, site: _TestServer, worker: Worker, client: Client) -> None:
        super().__init__(site, worker)
        self.client = client

    def drain(
        self, *, raise_errors: bool = False, timeout: Duration = DRAIN_SECONDS, attempts_max: int = ATTEMPTS_MAX
    ) -> int:
        """Run all that is due, here and now, and what becomes due by it, until nothing is; how many attempts that was.

        With `raise_errors` the first error of a handler is raised at the end. Raises `NotInTime` when it takes longer
        than the timeout, or more attempts than there may be.
        """
        _require_no_event_loop()
        return asyncio.run(_drain(self._server, self._worker, raise_errors, to_seconds(timeout), attempts_max))


class AsyncLocalIngot(_LocalIngotBase):
    """The same, to await."""

    def __init__(self, site: _TestServer, worker: Worker, client: AsyncClient) -> None:
        super().__init__(site, worker)
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
        raise InvalidInput("an event loop runs here already", hint="Use `start_async`, and await `drain`.")


def _merge_workers(workers: Sequence[Worker]) -> Worker:
    whole = Worker()
    for handler in (one for worker in workers for one in worker.handlers.values()):
        whole.add(handler)
    return whole


# -- the server -------------------------------------------------------------------------------------------------------


class _TestServer:
    """The server, in a thread of its own: nothing that a test or a handler does keeps it from answering."""

    url: str
    token: str
    tenant: str
    worker_address: ServerAddress

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.templates = Templates()  # One drain after the other uses them: to begin one takes a while.
        self._folder = tempfile.TemporaryDirectory(prefix="ingot-testing-")
        self._thread = ServerThread(self._serve, name="ingot-testing")

    def __enter__(self) -> _TestServer:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Serve."""
        try:
            self._thread.start()
        except BaseException:
            self._folder.cleanup()
            raise

    def close(self) -> None:
        """Serve no more, and leave nothing behind."""
        with ExitStack() as closing:  # Each is closed although another one fails.
            closing.callback(self._folder.cleanup)
            closing.callback(self._thread.stop)
            closing.callback(self.templates.close)

    async def _serve(self, started: Callable[[Server], None]) -> None:
        settings = Settings(data=Path(self._folder.name))
        async with services.open(settings=settings, clock=self.clock, maintenance=False) as ingot:
            ingot.workers.grace_seconds = GRACE_SECONDS
            operator = await ingot.credentials.ensure_operator_token(None)
            assert operator is not None
            made = await ingot.credentials.create_worker_credential(None, WORKER_ID)
            await services.define_built_in_types(ingot)
            with listen("127.0.0.1", 0) as listening:
                server = api_server.build_server(ingot, settings)
                self.url, self.token, self.tenant = url_of(listening), operator.text, ingot.default_tenant.slug
                headers = {"x-worker-id": WORKER_ID, "x-worker-secret": made.secret}
                self.worker_address = ServerAddress(url=self.url, headers=headers)
                started(server)
                await server.serve(sockets=[listening])


# -- draining ---------------------------------------------------------------------------------------------------------


async def _drain(site: _TestServer, worker: Worker, raise_errors: bool, seconds: float, attempts_max: int) -> int:
    if not worker.handlers:
        return 0
    errors: dict[str, BaseException] = {}
    seen = _DrainState(worker, attempts_max)
    runner = Runner(
        _capture_errors(worker, errors),
        lambda: _ObservedJobSource(site.worker_address, seen),
        drain_seconds=STOP_SECONDS,
        file_client=HttpFileClient(site.worker_address),
        templates=site.templates,
    )
    stopping = asyncio.Event()
    running = asyncio.create_task(runner.run(stopping))
    waiting = asyncio.create_task(seen.done.wait())
    try:
        await asyncio.wait({running, waiting}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        late, done = dict(seen.running_types), waiting.done()
    finally:
        waiting.cancel()
        stopping.set()
        await running
    if not done:
        types = ", ".join(sorted(set(late.values()))) or "none"
        raise NotInTime(f"after {seconds:g} seconds {len(late)} jobs still run, of types: {types}", hint=TIMEOUT_HINT)
    if seen.is_over_limit:
        raise NotInTime(f"more is due after {attempts_max} attempts", hint="Does a handler ask for itself again?")
    if raise_errors and seen.errors:
        raise _first_error(seen.errors, errors)
    return seen.attempts


def _first_error(failed: dict[str, str], errors: dict[str, BaseException]) -> BaseException:
    job_id, text = next(iter(failed.items()))
    error = errors.get(job_id) or HandlerFailed(text)
    error.add_note(f"The job is {job_id}.")
    if len(failed) > 1:
        error.add_note(f"{len(failed) - 1} more failed.")
    return error


def _capture_errors(worker: Worker, errors: dict[str, BaseException]) -> Worker:
    """The same handlers; what they raise is kept as it is, where that can be."""
    noting = Worker()
    for handler in worker.handlers.values():
        noting.add(handler if handler.isolate else _capture_handler_errors(handler, errors))
    return noting


def _capture_handler_errors(handler: Handler, errors: dict[str, BaseException]) -> Handler:
    @wraps(handler.function)
    def plain(job: WorkerJob) -> Any:
        try:
            return handler.function(job)
        except BaseException as error:
            errors[job.id] = error
            raise

    @wraps(handler.function)
    async def awaited(job: WorkerJob) -> Any:
        try:
            return await handler.function(job)
        except BaseException as error:
            errors[job.id] = error
            raise

    return msgspec.structs.replace(handler, function=awaited if handler.is_async else plain)


_AttemptId = tuple[str, int]  # A job, and the fence of the claim: the same job can be back before the last word on it.


class _DrainState:
    """What a drain has seen: jobs that are worked on, and types of which nothing was left since the last one ended."""

    def __init__(self, worker: Worker, attempts_max: int) -> None:
        self.done = asyncio.Event()
        self.attempts = 0
        self.completed_rounds = 0
        self.running_types: dict[_AttemptId, str] = {}
        self.errors: dict[str, str] = {}
        self._attempts_max = attempts_max
        self._empty_rounds = dict.fromkeys(worker.handlers, -1)
        self._attempt_ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    @property
    def is_over_limit(self) -> bool:
        """Whether there were more attempts than there may be."""
        return self.attempts > self._attempts_max

    def record_claimed(self, works: Sequence[ClaimedJob]) -> None:
        """These are worked on."""
        self.attempts += len(works)
        self.running_types |= {(work.job.id, work.job.fence): work.job.type for work in works}
        if self.is_over_limit:
            self.done.set()

    def record_ended(self, attempts: Sequence[_AttemptId]) -> None:
        """These are not any more, and something else may have become due by it. May be called from any thread."""
        self._loop.call_soon_threadsafe(self._remove_ended, attempts)

    def _remove_ended(self, attempts: Sequence[_AttemptId]) -> None:
        for attempt in attempts:
            self.running_types.pop(attempt, None)
        self.completed_rounds += 1
        self._attempt_ended.set()
        self._attempt_ended = asyncio.Event()

    async def record_empty_claim(self, type: str, as_of: int) -> None:
        """There was nothing of this type as of a round: wait for the next, or a moment, as what runs asks for more."""
        self._empty_rounds[type] = as_of
        if not self.running_types and all(seen == self.completed_rounds for seen in self._empty_rounds.values()):
            self.done.set()
        if as_of == self.completed_rounds:
            await wait_for(self._attempt_ended, IDLE_WAIT_SECONDS)


class _ObservedJobSource:
    """The board over HTTP, with an eye on it."""

    def __init__(self, place: ServerAddress, seen: _DrainState) -> None:
        self._source = HttpJobSource(place, WORKER_ID)
        self._state = seen
        self.register = self._source.register
        self.drain = self._source.drain
        self.leave = self._source.leave
        self.close = self._source.close

    async def claim(self, type: str, *, limit: int, wait_seconds: float) -> list[ClaimedJob]:  # noqa: ARG002 - as in `Board`
        """See `Board`. With nothing there it waits until another job has ended."""
        as_of = self._state.completed_rounds
        works = await self._source.claim(type, limit=limit, wait_seconds=0)
        if works:
            self._state.record_claimed(works)
        else:
            await self._state.record_empty_claim(type, as_of)
        return works

    async def heartbeat(self, held: Sequence[JobHeartbeat], *, wait_seconds: float) -> WorkerHeartbeatResponse:
        """See `Board`."""
        answer = await self._source.heartbeat(held, wait_seconds=wait_seconds)
        lost = {told.id for told in answer.jobs if told.lost}
        if ended := [(one.id, one.fence) for one in held if one.id in lost]:
            self._state.record_ended(ended)
        return answer

    async def settle(self, endings: Sequence[ReportedOutcome]) -> list[SettleResult]:
        """See `Board`."""
        answers = await self._source.settle(endings)
        self._state.errors |= {ending.id: ending.error for ending in endings if isinstance(ending, AttemptFailed)}
        self._state.record_ended([(ending.id, ending.fence) for ending in endings])
        return answers
