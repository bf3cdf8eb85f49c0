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
from ingot.client.orders import Seconds, seconds_of
from ingot.client.place import Place
from ingot.http.aside import ServerThread
from ingot.http.server import Server, listen, url_of
from ingot.kernel.clock import ManualClock, SystemClock, to_datetime
from ingot.kernel.errors import InvalidInput
from ingot.kernel.waits import wait_for
from ingot.settings import Settings
from ingot.wire.jobs import Broke, SettleAnswer
from ingot.wire.workers import HeldJob, WorkerBeatAnswer
from ingot.wiring import rooms, serving
from ingot.worker.app import Handler, Worker
from ingot.worker.isolation import Templates
from ingot.worker.job import WorkerJob
from ingot.worker.over_http import HttpBoard, HttpFileDesk
from ingot.worker.ports import Ending, Work
from ingot.worker.runner import Runner

__all__ = ["AsyncLocalIngot", "FakeClock", "HandlerFailed", "LocalIngot", "start", "start_async"]

WORKER: Final = "testing"
DRAIN_SECONDS: Final = 30.0
ATTEMPTS_MAX: Final = 10_000
LATE_HINT: Final = "Give `drain` a longer timeout, or look for a handler that does not end."
LOOK_SECONDS: Final = 0.05
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
    with _Site(_clock_at(now)) as site, Client(site.url, token=site.token, tenant=site.tenant) as client:
        yield LocalIngot(site, _joined(workers), client)


@asynccontextmanager
async def start_async(*workers: Worker, now: datetime | None = None) -> AsyncIterator[AsyncLocalIngot]:
    """The same for tests that await: async handlers run on the loop of the test."""
    site = _Site(_clock_at(now))
    await asyncio.to_thread(site.open)
    try:
        async with AsyncClient(site.url, token=site.token, tenant=site.tenant) as client:
            yield AsyncLocalIngot(site, _joined(workers), client)
    finally:
        await asyncio.to_thread(site.close)


class _Local:
    def __init__(self, site: _Site, worker: Worker) -> None:
        self._site = site
        self._worker = worker

    @property
    def url(self) -> str:
        """Where the server is."""
        return self._site.url

    @property
    def token(self) -> str:
        """The operator's token."""
        return self._site.token

    @property
    def clock(self) -> FakeClock:
        """The time of the server."""
        return self._site.clock

    @property
    def environment(self) -> dict[str, str]:
        """What `Client()` finds the server by, in code under test too."""
        return {"INGOT_SERVER_URL": self.url, "INGOT_TOKEN": self.token, "INGOT_TENANT": self._site.tenant}


class LocalIngot(_Local):
    """A server, and handlers that run when `drain` is called."""

    def __init__(self, site: _Site, worker: Worker, client: Client) -> None:
        super().__init__(site, worker)
        self.client = client

    def drain(
        self, *, raise_errors: bool = False, timeout: Seconds = DRAIN_SECONDS, attempts_max: int = ATTEMPTS_MAX
    ) -> int:
        """Run all that is due, here and now, and what becomes due by it, until nothing is; how many attempts that was.

        With `raise_errors` the first error of a handler is raised at the end. Raises `NotInTime` when it takes longer
        than the timeout, or more attempts than there may be.
        """
        _expect_no_loop()
        return asyncio.run(_drain(self._site, self._worker, raise_errors, seconds_of(timeout), attempts_max))


class AsyncLocalIngot(_Local):
    """The same, to await."""

    def __init__(self, site: _Site, worker: Worker, client: AsyncClient) -> None:
        super().__init__(site, worker)
        self.client = client

    async def drain(
        self, *, raise_errors: bool = False, timeout: Seconds = DRAIN_SECONDS, attempts_max: int = ATTEMPTS_MAX
    ) -> int:
        """See `LocalIngot.drain`."""
        return await _drain(self._site, self._worker, raise_errors, seconds_of(timeout), attempts_max)


def _clock_at(now: datetime | None) -> FakeClock:
    return FakeClock(to_datetime(SystemClock().micros()) if now is None else now)


def _expect_no_loop() -> None:
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise InvalidInput("an event loop runs here already", hint="Use `start_async`, and await `drain`.")


def _joined(workers: Sequence[Worker]) -> Worker:
    whole = Worker()
    for handler in (one for worker in workers for one in worker.handlers.values()):
        whole.add(handler)
    return whole


# -- the server -------------------------------------------------------------------------------------------------------


class _Site:
    """The server, in a thread of its own: nothing that a test or a handler does keeps it from answering."""

    url: str
    token: str
    tenant: str
    worker: Place

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.templates = Templates()  # One drain after the other uses them: to begin one takes a while.
        self._folder = tempfile.TemporaryDirectory(prefix="ingot-testing-")
        self._thread = ServerThread(self._serve, name="ingot-testing")

    def __enter__(self) -> _Site:
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
        async with rooms.open(settings=settings, clock=self.clock, tend=False) as ingot:
            ingot.workers.grace_seconds = GRACE_SECONDS
            operator = await ingot.credentials.ensure_operator(None)
            assert operator is not None
            made = await ingot.credentials.create_worker(None, WORKER)
            await rooms.define_built_in(ingot)
            with listen("127.0.0.1", 0) as listening:
                server = serving.server_of(ingot, settings)
                self.url, self.token, self.tenant = url_of(listening), operator.text, ingot.default_tenant.slug
                headers = {"x-worker-id": WORKER, "x-worker-secret": made.secret}
                self.worker = Place(url=self.url, headers=headers)
                started(server)
                await server.serve(sockets=[listening])


# -- draining ---------------------------------------------------------------------------------------------------------


async def _drain(site: _Site, worker: Worker, raise_errors: bool, seconds: float, attempts_max: int) -> int:
    if not worker.handlers:
        return 0
    errors: dict[str, BaseException] = {}
    seen = _Seen(worker, attempts_max)
    runner = Runner(
        _noting(worker, errors),
        lambda: _SeenBoard(site.worker, seen),
        drain_seconds=STOP_SECONDS,
        desk=HttpFileDesk(site.worker),
        templates=site.templates,
    )
    stopping = asyncio.Event()
    running = asyncio.create_task(runner.run(stopping))
    waiting = asyncio.create_task(seen.done.wait())
    try:
        await asyncio.wait({running, waiting}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        late, done = dict(seen.held), waiting.done()
    finally:
        waiting.cancel()
        stopping.set()
        await running
    if not done:
        types = ", ".join(sorted(set(late.values()))) or "none"
        raise NotInTime(f"after {seconds:g} seconds {len(late)} jobs still run, of types: {types}", hint=LATE_HINT)
    if seen.too_many:
        raise NotInTime(f"more is due after {attempts_max} attempts", hint="Does a handler ask for itself again?")
    if raise_errors and seen.failed:
        raise _error_of(seen.failed, errors)
    return seen.ran


def _error_of(failed: dict[str, str], errors: dict[str, BaseException]) -> BaseException:
    job_id, text = next(iter(failed.items()))
    error = errors.get(job_id) or HandlerFailed(text)
    error.add_note(f"The job is {job_id}.")
    if len(failed) > 1:
        error.add_note(f"{len(failed) - 1} more failed.")
    return error


def _noting(worker: Worker, errors: dict[str, BaseException]) -> Worker:
    """The same handlers; what they raise is kept as it is, where that can be."""
    noting = Worker()
    for handler in worker.handlers.values():
        noting.add(handler if handler.isolate else _noting_one(handler, errors))
    return noting


def _noting_one(handler: Handler, errors: dict[str, BaseException]) -> Handler:
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


_Attempt = tuple[str, int]  # A job, and the fence of the claim: the same job can be back before the last word on it.


class _Seen:
    """What a drain has seen: jobs that are worked on, and types of which nothing was left since the last one ended."""

    def __init__(self, worker: Worker, attempts_max: int) -> None:
        self.done = asyncio.Event()
        self.ran = 0
        self.round = 0
        self.held: dict[_Attempt, str] = {}
        self.failed: dict[str, str] = {}
        self._attempts_max = attempts_max
        self._nothing_left = dict.fromkeys(worker.handlers, -1)
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    @property
    def too_many(self) -> bool:
        """Whether there were more attempts than there may be."""
        return self.ran > self._attempts_max

    def took(self, works: Sequence[Work]) -> None:
        """These are worked on."""
        self.ran += len(works)
        self.held |= {(work.job.id, work.job.fence): work.job.type for work in works}
        if self.too_many:
            self.done.set()

    def ended(self, attempts: Sequence[_Attempt]) -> None:
        """These are not any more, and something else may have become due by it. May be called from any thread."""
        self._loop.call_soon_threadsafe(self._end, attempts)

    def _end(self, attempts: Sequence[_Attempt]) -> None:
        for attempt in attempts:
            self.held.pop(attempt, None)
        self.round += 1
        self._ended.set()
        self._ended = asyncio.Event()

    async def nothing_left(self, type: str, as_of: int) -> None:
        """There was nothing of this type as of a round: wait for the next, or a moment, as what runs asks for more."""
        self._nothing_left[type] = as_of
        if not self.held and all(seen == self.round for seen in self._nothing_left.values()):
            self.done.set()
        if as_of == self.round:
            await wait_for(self._ended, LOOK_SECONDS)


class _SeenBoard:
    """The board over HTTP, with an eye on it."""

    def __init__(self, place: Place, seen: _Seen) -> None:
        self._board = HttpBoard(place, WORKER)
        self._seen = seen
        self.register = self._board.register
        self.drain = self._board.drain
        self.leave = self._board.leave
        self.close = self._board.close

    async def claim(self, type: str, *, limit: int, wait_seconds: float) -> list[Work]:  # noqa: ARG002 - as in `Board`
        """See `Board`. With nothing there it waits until another job has ended."""
        as_of = self._seen.round
        works = await self._board.claim(type, limit=limit, wait_seconds=0)
        if works:
            self._seen.took(works)
        else:
            await self._seen.nothing_left(type, as_of)
        return works

    async def beat(self, held: Sequence[HeldJob], *, wait_seconds: float) -> WorkerBeatAnswer:
        """See `Board`."""
        answer = await self._board.beat(held, wait_seconds=wait_seconds)
        lost = {told.id for told in answer.jobs if told.lost}
        if ended := [(one.id, one.fence) for one in held if one.id in lost]:
            self._seen.ended(ended)
        return answer

    async def settle(self, endings: Sequence[Ending]) -> list[SettleAnswer]:
        """See `Board`."""
        answers = await self._board.settle(endings)
        self._seen.failed |= {ending.id: ending.error for ending in endings if isinstance(ending, Broke)}
        self._seen.ended([(ending.id, ending.fence) for ending in endings])
        return answers
