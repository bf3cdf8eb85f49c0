"""The heartbeat: one for all jobs of the worker, from a thread of its own, where no handler can hold it up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from ingot.jobs.checks import LOG_CHARS_MAX
from ingot.jobs.errors import WorkerNotFound
from ingot.kernel.errors import IngotError
from ingot.kernel.logs import report
from ingot.wire.workers import WorkerBeatAnswer
from ingot.worker.job import News
from ingot.worker.ports import Board
from ingot.worker.run import Run

WAIT_SECONDS: Final = 30.0  # Proxies let a request wait for a minute.
NEWS_SECONDS: Final = 1.0  # News are told no more often.
NAME_SECONDS: Final = 0.5  # A job that runs for longer is named, so that it is told when it is to stop.
AGAIN_SECONDS: Final = 1.0
log = structlog.get_logger("ingot.worker")
LOGS_CHARS_MAX: Final = 2 * 1024 * 1024  # In one heartbeat, of all jobs together.
Heard = Callable[[Sequence[Run], WorkerBeatAnswer], None]


class HeartStopped(IngotError):
    """The heartbeat of the worker has stopped."""

    code = "heart_stopped"
    status = 500
    hint = "Start the worker again, and look at its log for why."


class Heart:
    """Tells the server that the worker lives, what its jobs do and write, and hears which of them are to stop."""

    def __init__(
        self,
        boards: Callable[[], Board],
        runs: Mapping[str, Run],
        heard: Heard,
        *,
        every: float,
        types: Sequence[str],
        failed: Callable[[IngotError], None],
    ) -> None:
        self._boards = boards
        self._runs = runs
        self._heard = heard
        self._failed = failed
        self._types = types
        self._wait = min(WAIT_SECONDS, every)
        self._thread = threading.Thread(target=self._live, name="ingot-heart", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news: asyncio.Event | None = None
        self._stopping: asyncio.Event | None = None
        self._ready = threading.Event()

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """Beat no more."""
        if self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def wake(self) -> None:
        """There is something new to tell. May be called from any thread, and as often as a handler prints."""
        if self._loop is None or self._news is None or self._news.is_set() or self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._news.set)

    def _live(self) -> None:
        try:
            asyncio.run(self._beat_on())
        except Exception as error:
            report("heart_stopped", error)
            self._failed(HeartStopped())

    async def _beat_on(self) -> None:
        self._loop, self._news, self._stopping = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        self._ready.set()
        board = self._boards()
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            while not self._stopping.is_set():
                beating = asyncio.create_task(self._beat(board))
                await asyncio.wait({beating, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not beating.done():
                    beating.cancel()
                await asyncio.wait({beating})
                if not beating.cancelled() and (error := beating.exception()) is not None:
                    log.warning("heartbeat_failed", error=str(error))
                    if isinstance(error, IngotError):
                        self._failed(error)
                    await asyncio.wait({stopping}, timeout=AGAIN_SECONDS)
        finally:
            stopping.cancel()
            await board.close()

    async def _beat(self, board: Board) -> None:
        """Tell what is new, or else wait for something to hear, unless there is news meanwhile, or jobs to name."""
        try:
            await self._tell(board)
        except WorkerNotFound:  # Somebody removed it, and gave back what it held.
            await board.register(self._types)

    async def _tell(self, board: Board) -> None:
        assert self._news is not None
        if await tell_news(board, self._runs, self._heard):
            await asyncio.sleep(NEWS_SECONDS)
            return
        self._news.clear()
        runs = list(self._runs.values())
        held, named = [run.held(told) for run, told in _news_of(runs).items()], set(runs)
        waiting = asyncio.ensure_future(board.beat(held, wait_seconds=self._wait))
        news = asyncio.create_task(self._news.wait())
        unnamed: set[Run] = set()
        while not (waiting.done() or news.done()):
            await asyncio.wait({waiting, news}, timeout=NAME_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            # Not those that wait to be settled: renewing them stands in the way of that.
            before, unnamed = unnamed, {run for run in list(self._runs.values()) if not run.ended} - named
            if before & unnamed:
                break
        news.cancel()
        if waiting.done():
            answer = waiting.result()
            self._heard(runs, answer)
            if any(told.lost for told in answer.jobs):  # Mostly settled meanwhile: of short jobs there always is one.
                await asyncio.sleep(NEWS_SECONDS)
        else:
            waiting.cancel()
            await asyncio.wait({waiting})


async def tell_news(board: Board, runs: Mapping[str, Run], heard: Heard) -> bool:
    """Tell what is new of these runs, if anything is; whether there was."""
    news = _news_of(list(runs.values()))
    if not any(news.values()):
        return False
    heard(list(news), await board.beat([run.held(told) for run, told in news.items()], wait_seconds=0))
    for run, told in news.items():
        run.job.told(told)
    return True


def _news_of(runs: Sequence[Run]) -> dict[Run, News]:
    """What is new of each, with as much of their logs as one heartbeat takes."""
    news, left = {}, LOGS_CHARS_MAX
    for run in runs:
        news[run] = run.job.take_news(min(left, LOG_CHARS_MAX))
        left -= len(news[run].log)
    return news
