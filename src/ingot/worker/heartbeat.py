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
from ingot.wire.workers import WorkerHeartbeatResponse
from ingot.worker.attempt import RunningAttempt
from ingot.worker.job import AttemptUpdate
from ingot.worker.ports import JobSource

WAIT_SECONDS: Final = 30.0  # Proxies let a request wait for a minute.
UPDATE_SECONDS: Final = 1.0  # News are told no more often.
NEW_ATTEMPT_SECONDS: Final = 0.5  # A job that runs for longer is named, so that it is told when it is to stop.
RETRY_SECONDS: Final = 1.0
log = structlog.get_logger("ingot.worker")
HEARTBEAT_LOG_CHARS_MAX: Final = 2 * 1024 * 1024  # In one heartbeat, of all jobs together.
ResponseListener = Callable[[Sequence[RunningAttempt], WorkerHeartbeatResponse], None]


class HeartbeatStopped(IngotError):
    """The heartbeat of the worker has stopped."""

    code = "heart_stopped"
    status = 500
    hint = "Start the worker again, and look at its log for why."


class HeartbeatThread:
    """Tells the server that the worker lives, what its jobs do and write, and hears which of them are to stop."""

    def __init__(
        self,
        boards: Callable[[], JobSource],
        runs: Mapping[str, RunningAttempt],
        heard: ResponseListener,
        *,
        interval_seconds: float,
        types: Sequence[str],
        failure_listener: Callable[[IngotError], None],
    ) -> None:
        self._create_job_source = boards
        self._attempts = runs
        self._response_listener = heard
        self._failure_listener = failure_listener
        self._types = types
        self._wait_seconds = min(WAIT_SECONDS, interval_seconds)
        self._thread = threading.Thread(target=self._run_thread, name="ingot-heart", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._update_event: asyncio.Event | None = None
        self._stop_event: asyncio.Event | None = None
        self._ready = threading.Event()

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """Beat no more."""
        if self._loop is not None and self._stop_event is not None:
            self._loop.call_soon_threadsafe(self._stop_event.set)
        self._thread.join()

    def wake(self) -> None:
        """There is something new to tell. May be called from any thread, and as often as a handler prints."""
        if self._loop is None or self._update_event is None or self._update_event.is_set() or self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._update_event.set)

    def _run_thread(self) -> None:
        try:
            asyncio.run(self._heartbeat_loop())
        except Exception as error:
            report("heart_stopped", error)
            self._failure_listener(HeartbeatStopped())

    async def _heartbeat_loop(self) -> None:
        self._loop, self._update_event, self._stop_event = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        self._ready.set()
        board = self._create_job_source()
        stopping = asyncio.create_task(self._stop_event.wait())
        try:
            while not self._stop_event.is_set():
                beating = asyncio.create_task(self._heartbeat_or_register(board))
                await asyncio.wait({beating, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not beating.done():
                    beating.cancel()
                await asyncio.wait({beating})
                if not beating.cancelled() and (error := beating.exception()) is not None:
                    log.warning("heartbeat_failed", error=str(error))
                    if isinstance(error, IngotError):
                        self._failure_listener(error)
                    await asyncio.wait({stopping}, timeout=RETRY_SECONDS)
        finally:
            stopping.cancel()
            await board.close()

    async def _heartbeat_or_register(self, board: JobSource) -> None:
        """Tell what is new, or else wait for something to hear, unless there is news meanwhile, or jobs to name."""
        try:
            await self._send_heartbeat(board)
        except WorkerNotFound:  # Somebody removed it, and gave back what it held.
            await board.register(self._types)

    async def _send_heartbeat(self, board: JobSource) -> None:
        assert self._update_event is not None
        if await send_updates(board, self._attempts, self._response_listener):
            await asyncio.sleep(UPDATE_SECONDS)
            return
        self._update_event.clear()
        runs = list(self._attempts.values())
        held, named = [run.job_heartbeat(told) for run, told in _pending_updates(runs).items()], set(runs)
        waiting = asyncio.ensure_future(board.heartbeat(held, wait_seconds=self._wait_seconds))
        news = asyncio.create_task(self._update_event.wait())
        unnamed: set[RunningAttempt] = set()
        while not (waiting.done() or news.done()):
            await asyncio.wait({waiting, news}, timeout=NEW_ATTEMPT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            # Not those that wait to be settled: renewing them stands in the way of that.
            before, unnamed = unnamed, {run for run in list(self._attempts.values()) if not run.is_finished} - named
            if before & unnamed:
                break
        news.cancel()
        if waiting.done():
            answer = waiting.result()
            self._response_listener(runs, answer)
            if any(told.lost for told in answer.jobs):  # Mostly settled meanwhile: of short jobs there always is one.
                await asyncio.sleep(UPDATE_SECONDS)
        else:
            waiting.cancel()
            await asyncio.wait({waiting})


async def send_updates(board: JobSource, runs: Mapping[str, RunningAttempt], heard: ResponseListener) -> bool:
    """Tell what is new of these runs, if anything is; whether there was."""
    news = _pending_updates(list(runs.values()))
    if not any(news.values()):
        return False
    heard(list(news), await board.heartbeat([run.job_heartbeat(told) for run, told in news.items()], wait_seconds=0))
    for run, told in news.items():
        run.job.mark_sent(told)
    return True


def _pending_updates(runs: Sequence[RunningAttempt]) -> dict[RunningAttempt, AttemptUpdate]:
    """What is new of each, with as much of their logs as one heartbeat takes."""
    news, left = {}, HEARTBEAT_LOG_CHARS_MAX
    for run in runs:
        news[run] = run.job.pending_update(min(left, LOG_CHARS_MAX))
        left -= len(news[run].log)
    return news
