"""The runner: claims jobs, has them run, tells how they ended, and goes when it is told to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import structlog

from ingot.jobs.checks import LOG_CHARS_MAX
from ingot.kernel.clock import Clock, WallClock, to_datetime
from ingot.kernel.errors import IngotError
from ingot.wire.workers import WorkerBeatAnswer
from ingot.worker.app import Handler, Worker
from ingot.worker.capture import capturing
from ingot.worker.heart import Heart, tell_news
from ingot.worker.hours import Hours
from ingot.worker.job import LOG_CHARS_KEPT, WorkerJob
from ingot.worker.ports import Board, Ending, Work
from ingot.worker.run import Run, Why
from ingot.worker.running import ending_of

CLAIM_SECONDS: Final = 25.0
HOURS_SECONDS: Final = 0.5  # How often it is looked whether the hours have begun.
AGAIN_SECONDS: Final = 0.5
AGAIN_SECONDS_MAX: Final = 15.0
DRAIN_SECONDS: Final = 30.0
SETTLES_MAX: Final = 1000
UNSETTLED_MAX: Final = 2000  # With more to tell, no more is taken: what is held must fit in a heartbeat.
LOG_PARTS_MAX: Final = LOG_CHARS_KEPT // LOG_CHARS_MAX + 1
log = structlog.get_logger("ingot.worker")


class Runner:
    """Runs the handlers of a worker. `boards` makes a way to the work, one for each loop that needs one.

    With `hours` it takes work only then; the clock says when that is.
    """

    def __init__(
        self,
        worker: Worker,
        boards: Callable[[], Board],
        *,
        drain_seconds: float = DRAIN_SECONDS,
        hours: Hours | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._hours = hours
        self._clock = clock or WallClock()
        self._worker = worker
        self._boards = boards
        self._drain_seconds = drain_seconds
        self._runs: dict[str, Run] = {}  # Until the server knows how they ended.
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._busy: Counter[str] = Counter()
        self._freed: dict[str, asyncio.Event] = {type: asyncio.Event() for type in worker.handlers}
        self._endings: asyncio.Queue[tuple[Run, Ending]] = asyncio.Queue()
        self._drain = asyncio.Event()
        self._heart: Heart | None = None

    async def run(self, stopping: asyncio.Event) -> None:
        """Work until `stopping` is set or the server says so, then finish or give back what runs, and go."""
        loop = asyncio.get_running_loop()
        board = self._boards()
        every = await board.register(sorted(self._worker.handlers))

        def heard(answer: WorkerBeatAnswer) -> None:
            loop.call_soon_threadsafe(self._hear, answer)

        self._heart = Heart(self._boards, self._runs, heard, every=every)
        self._heart.start()
        threads = ThreadPoolExecutor(max(1, sum(one.concurrency for one in self._worker.handlers.values())))
        settling = asyncio.create_task(self._settle_on(board))
        claiming = [
            asyncio.create_task(self._claim_on(board, handler, threads)) for handler in self._worker.handlers.values()
        ]
        try:
            with capturing():
                await _first(stopping, self._drain, *claiming)
                await _end(*claiming)
                await self._finish()
        finally:
            await _end(*claiming)
            with suppress(TimeoutError):  # Of a server that is away nobody waits for ever.
                async with asyncio.timeout(self._drain_seconds):
                    await self._endings.join()
            await _end(settling)
            self._heart.stop()
            threads.shutdown(wait=False, cancel_futures=True)
            with suppress(IngotError):
                await board.leave()
            await board.close()

    # -- claiming -------------------------------------------------------------------------------------------

    async def _claim_on(self, board: Board, handler: Handler, threads: ThreadPoolExecutor) -> None:
        """Take work of one type whenever there is room for it."""
        pause = AGAIN_SECONDS
        while True:
            free = handler.concurrency - self._busy[handler.type]
            if free <= 0 or self._endings.qsize() > UNSETTLED_MAX:
                self._freed[handler.type].clear()
                await self._freed[handler.type].wait()
                continue
            if (open_seconds := self._open_seconds()) <= 0:
                await asyncio.sleep(HOURS_SECONDS)
                continue
            try:
                for work in await board.claim(handler.type, limit=free, wait_seconds=open_seconds):
                    self._start(handler, work, threads)
                pause = AGAIN_SECONDS
            except IngotError as error:
                log.warning("claim_failed", type=handler.type, code=error.code, detail=error.detail, hint=error.hint)
                await asyncio.sleep(pause)
                pause = min(2 * pause, AGAIN_SECONDS_MAX)

    def _open_seconds(self) -> float:
        """How long a claim may wait: not beyond the hours, outside of which it is 0."""
        if self._hours is None:
            return CLAIM_SECONDS
        return self._hours.open_seconds(to_datetime(self._clock.micros()), most=CLAIM_SECONDS)

    def _start(self, handler: Handler, work: Work, threads: ThreadPoolExecutor) -> None:
        assert self._heart is not None
        run = Run(handler, work, WorkerJob(work.job, self._heart.wake))
        self._runs[run.id] = run
        self._busy[handler.type] += 1
        self._tasks[run.id] = asyncio.create_task(self._run(run, threads), name=f"job {run.id}")

    async def _run(self, run: Run, threads: ThreadPoolExecutor) -> None:
        ending = await ending_of(run, threads)
        self._busy[run.handler.type] -= 1
        self._freed[run.handler.type].set()
        del self._tasks[run.id]
        if run.why == "lost":
            self._runs.pop(run.id, None)
        else:
            self._endings.put_nowait((run, ending))

    # -- telling --------------------------------------------------------------------------------------------

    async def _settle_on(self, board: Board) -> None:
        """Tell how jobs ended, those together that ended meanwhile."""
        while True:
            some = [await self._endings.get()]
            while len(some) < SETTLES_MAX and not self._endings.empty():
                some.append(self._endings.get_nowait())
            await self._settle(board, some)
            for run, _ in some:
                self._runs.pop(run.id, None)
                self._endings.task_done()
            for freed in self._freed.values():
                freed.set()

    async def _settle(self, board: Board, some: list[tuple[Run, Ending]]) -> None:
        """Tell until it is told, or the jobs are somebody else's."""
        pause = AGAIN_SECONDS
        while some := [(run, ending) for run, ending in some if run.why != "lost"]:
            try:
                await self._tell_logs(board, [run for run, _ in some])
                answers = await board.settle([ending for _, ending in some])
            except IngotError as error:
                log.warning("settle_failed", jobs=len(some), code=error.code, detail=error.detail)
                await asyncio.sleep(pause)
                pause = min(2 * pause, AGAIN_SECONDS_MAX)
                continue
            for answer in answers:
                if answer.code is not None:
                    log.warning("not_settled", job_id=answer.id, code=answer.code, detail=answer.detail)
            return

    async def _tell_logs(self, board: Board, ended: list[Run]) -> None:
        """Tell what these wrote last. All runs are named with them: what is not named is given back."""
        for _ in range(LOG_PARTS_MAX):
            if not any(run.job.has_news for run in ended):
                return
            await tell_news(board, self._runs, self._hear)

    def _hear(self, answer: WorkerBeatAnswer) -> None:
        """What the server says of our jobs."""
        for told in answer.jobs:
            run = self._runs.get(told.id)
            if run is None:
                continue
            if told.lost:
                self._stop(run, "lost")
            elif told.cancel_requested:
                self._stop(run, "canceled")
        if answer.drain:
            self._drain.set()

    def _stop(self, run: Run, why: Why) -> None:
        if run.why in ("lost", why):
            return
        run.stop(why)
        task = self._tasks.get(run.id)
        if task is not None and run.handler.is_async:
            task.cancel()

    async def _finish(self) -> None:
        """Let what runs come to its end for a while, and then have it stop, to be given back."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=self._drain_seconds)
        for run in [self._runs[id] for id in self._tasks]:
            self._stop(run, "drain")
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=self._drain_seconds)


async def _first(*ends: asyncio.Event | asyncio.Task[None]) -> None:
    """Wait for the first of these. A task that failed is raised."""
    tasks = [end if isinstance(end, asyncio.Task) else asyncio.create_task(end.wait()) for end in ends]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task, end in zip(tasks, ends, strict=True):
        if not isinstance(end, asyncio.Task):
            task.cancel()
    for task in done:
        task.result()


async def _end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
