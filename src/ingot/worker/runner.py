"""The runner: claims jobs, has them run, tells how they ended, and goes when it is told to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import structlog

from ingot.jobs.checks import LOG_CHARS_MAX
from ingot.jobs.errors import PayloadTooLarge
from ingot.jobs.files import OutputMissing
from ingot.kernel.clock import Clock, WallClock, to_datetime
from ingot.kernel.errors import IngotError, InvalidInput
from ingot.kernel.structs import prepare_structs
from ingot.kernel.waits import wait_for
from ingot.wire.jobs import Broke
from ingot.wire.workers import WorkerBeatAnswer
from ingot.worker.app import Handler, Worker
from ingot.worker.capture import capturing
from ingot.worker.heart import Heart, HeartStopped, tell_news
from ingot.worker.hours import Hours
from ingot.worker.isolation import Templates
from ingot.worker.job import LOG_CHARS_KEPT, WorkerJob
from ingot.worker.over_http import HttpFileDesk
from ingot.worker.ports import Board, Ending, Work
from ingot.worker.run import Run, Why
from ingot.worker.running import ending_of
from ingot.worker.workshop import Workshop

CLAIM_SECONDS: Final = 25.0
HOURS_SECONDS: Final = 0.5  # How often it is looked whether the hours have begun.
CLAIM_END_SECONDS: Final = 3.0  # That claims have to end when no more is wanted.
AGAIN_SECONDS: Final = 0.5
AGAIN_SECONDS_MAX: Final = 15.0
DRAIN_SECONDS: Final = 30.0
CLERKS: Final = 4  # Threads that send logs and remove files.
LOG_SECONDS: Final = 30.0  # That a long log has to be sent.
DRAIN_LOG_SECONDS: Final = 5.0  # And that of a job which is given back: its end has to be told too.
STOP_SECONDS: Final = 10.0  # That handlers have to stop when told to, and answers to come.
AWAY: Final = frozenset({429, 503})  # A server that answers so, or not at all, may be there later.
UNWANTED: Final = frozenset({401, 403})  # With this credential it never will.
REFUSED: Final = frozenset({400, 413, 422})
REFUSED_CODES: Final = frozenset({InvalidInput.code, PayloadTooLarge.code})
SETTLES_MAX: Final = 1000
UNSETTLED_MAX: Final = 2000  # With more to tell, no more is taken: what is held must fit in a heartbeat.
LOG_PARTS_MAX: Final = LOG_CHARS_KEPT // LOG_CHARS_MAX + 1
GOES_ON_HINT: Final = "Its place stays taken until it ends: have it look at job.canceled, or isolate=True."
log = structlog.get_logger("ingot.worker")


class Runner:
    """Runs the handlers of a worker. `boards` makes a way to the work, one for each loop that needs one.

    With `hours` it takes work only then; the clock says when that is. With `echo`, what handlers print is printed too.
    The `desk` is where files are asked for; without one there are none. `templates` that are passed in outlive the
    runner, and the caller closes them; otherwise the runner creates its own, and closes them.
    """

    def __init__(
        self,
        worker: Worker,
        boards: Callable[[], Board],
        *,
        drain_seconds: float = DRAIN_SECONDS,
        hours: Hours | None = None,
        clock: Clock | None = None,
        echo: bool = False,
        desk: HttpFileDesk | None = None,
        templates: Templates | None = None,
    ) -> None:
        self._echo = echo
        self.desk = desk
        self._workshop = Workshop()
        self._templates = templates or Templates()
        self._closes_templates = templates is None
        self._clerks = ThreadPoolExecutor(CLERKS, thread_name_prefix="ingot-clerk")
        self._hours = hours
        self._clock = clock or WallClock()
        self._worker = worker
        self._boards = boards
        self._drain_seconds = drain_seconds
        self._runs: dict[str, Run] = {}  # Until the server knows how they ended.
        self._tasks: dict[Run, asyncio.Task[None]] = {}
        self._busy: Counter[str] = Counter()
        self._freed: dict[str, asyncio.Event] = {type: asyncio.Event() for type in worker.handlers}
        self._endings: asyncio.Queue[tuple[Run, Ending]] = asyncio.Queue()
        self._drain = asyncio.Event()
        self._leaving = False
        self._heart: Heart | None = None
        self._fault: IngotError | None = None

    @property
    def is_busy(self) -> bool:
        """Whether handlers are at work: after the end these are threads that did not stop when told to."""
        return any(self._busy.values())

    async def run(self, stopping: asyncio.Event) -> None:
        """Work until `stopping` is set or the server says so, then finish or give back what runs, and go.

        A server that is not there yet is waited for. Raises what it says when it will have nothing to do with us.
        """
        prepare_structs()
        loop = asyncio.get_running_loop()
        board = self._boards()
        types = sorted(self._worker.handlers)
        try:
            every = await _registered(board, types, stopping)
        except BaseException:
            await board.close()
            raise
        if every is None:
            await board.close()
            return

        def heard(runs: Sequence[Run], answer: WorkerBeatAnswer) -> None:
            loop.call_soon_threadsafe(self._hear, runs, answer)
            for run, why in _to_stop(runs, answer):
                run.stop(why)  # At once, whatever holds up the loop.

        def failed(error: IngotError) -> None:
            loop.call_soon_threadsafe(self._judge, error)

        self._heart = Heart(self._boards, self._runs, heard, every=every, types=types, failed=failed)
        self._heart.start()
        threads = ThreadPoolExecutor(max(1, sum(one.concurrency for one in self._worker.handlers.values())))
        settling = asyncio.create_task(self._settle_on(board))
        claiming = [
            asyncio.create_task(self._claim_on(board, handler, threads)) for handler in self._worker.handlers.values()
        ]
        try:
            with capturing(echo=self._echo):
                await _first(stopping, self._drain, *claiming)
                await self._take_no_more(board, claiming)
                await self._finish()
                for task in claiming:
                    if not task.cancelled():
                        task.result()  # What it raised, if anything, after all that ran was seen to.
                if self._fault is not None:
                    raise self._fault
        finally:
            await _end(*claiming)
            with suppress(TimeoutError):  # Of a server that is away nobody waits for ever.
                async with asyncio.timeout(0 if self._fault else max(self._drain_seconds, STOP_SECONDS)):
                    await self._endings.join()
            await _end(settling)
            self._heart.stop()
            threads.shutdown(wait=False, cancel_futures=True)
            self._clerks.shutdown(wait=False, cancel_futures=True)
            if self._closes_templates:
                await asyncio.to_thread(self._templates.close)
            self._workshop.close()
            if self.desk is not None:
                self.desk.close()
            with suppress(IngotError):
                await board.leave()
            await board.close()

    # -- claiming -------------------------------------------------------------------------------------------

    async def _claim_on(self, board: Board, handler: Handler, threads: ThreadPoolExecutor) -> None:
        """Take work of one type whenever there is room for it."""
        pause = AGAIN_SECONDS
        while not self._leaving:
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
                await asyncio.sleep(0)  # Handlers begin before more is asked for.
            except IngotError as error:
                log.warning("claim_failed", type=handler.type, code=error.code, detail=error.detail, hint=error.hint)
                self._judge(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, AGAIN_SECONDS_MAX)

    async def _take_no_more(self, board: Board, claiming: Sequence[asyncio.Task[None]]) -> None:
        """Let claims come to their end: of one that is given up nobody knows what it took."""
        self._leaving = True
        for freed in self._freed.values():
            freed.set()
        with suppress(IngotError, TimeoutError):
            async with asyncio.timeout(CLAIM_END_SECONDS):
                await board.drain()
                await asyncio.wait(claiming)
        await _end(*claiming)

    def _open_seconds(self) -> float:
        """How long a claim may wait: not beyond the hours, outside of which it is 0."""
        if self._hours is None:
            return CLAIM_SECONDS
        return self._hours.open_seconds(to_datetime(self._clock.micros()), most=CLAIM_SECONDS)

    def _start(self, handler: Handler, work: Work, threads: ThreadPoolExecutor) -> None:
        assert self._heart is not None
        job = WorkerJob(work.job, self._heart.wake, desk=self.desk, workshop=self._workshop)
        run = Run(handler, work, job)
        if (before := self._runs.get(run.id)) is not None:
            self._stop(before, "lost")  # We were thought gone, and got the job again.
        self._runs[run.id] = run
        self._busy[handler.type] += 1
        self._tasks[run] = asyncio.create_task(self._run(run, threads), name=f"job {run.id}")

    async def _run(self, run: Run, threads: ThreadPoolExecutor) -> None:
        ending = await ending_of(run, threads, self._templates)
        run.interrupted = True  # There is nothing left to interrupt.
        if run.job.has_long_log and run.why != "lost":
            await self._keep_log(run)
        run.ended = True
        if run.thread is None or run.thread.done():
            self._free(run)
        else:
            log.warning("handler_goes_on", type=run.handler.type, job_id=run.id, hint=GOES_ON_HINT)
            run.thread.add_done_callback(lambda _: self._free(run))
        del self._tasks[run]
        if run.why == "lost":
            self._forget(run)
        else:
            self._endings.put_nowait((run, ending))

    async def _keep_log(self, run: Run) -> None:
        """Send a long log whole, before the end is told. That it cannot be costs the job nothing."""
        seconds = LOG_SECONDS if run.why != "drain" else DRAIN_LOG_SECONDS
        sending = asyncio.get_running_loop().run_in_executor(self._clerks, run.job.send_log, seconds)
        await asyncio.wait({sending}, timeout=seconds)
        if not sending.done():
            log.warning("log_not_kept", job_id=run.id, detail=f"it takes longer than {seconds:g} seconds")
            sending.add_done_callback(lambda done: done.cancelled() or done.exception())
        elif (error := sending.exception()) is not None:
            log.warning("log_not_kept", job_id=run.id, detail=str(error) or type(error).__name__)

    def _free(self, run: Run) -> None:
        self._busy[run.handler.type] -= 1
        self._freed[run.handler.type].set()
        if run.job.has_things:
            with suppress(RuntimeError):  # At the very end all is removed at once.
                self._clerks.submit(run.job.close)

    def _forget(self, run: Run) -> None:
        if self._runs.get(run.id) is run:
            del self._runs[run.id]

    # -- telling --------------------------------------------------------------------------------------------

    async def _settle_on(self, board: Board) -> None:
        """Tell how jobs ended, those together that ended meanwhile."""
        while True:
            some = [await self._endings.get()]
            while len(some) < SETTLES_MAX and not self._endings.empty():
                some.append(self._endings.get_nowait())
            await self._settle(board, some)
            for run, _ in some:
                self._forget(run)
                self._endings.task_done()
            for freed in self._freed.values():
                freed.set()

    async def _settle(self, board: Board, some: list[tuple[Run, Ending]]) -> None:
        """Tell until it is told, or the jobs are somebody else's."""
        pause = AGAIN_SECONDS
        while some := [(run, ending) for run, ending in some if run.why != "lost"]:
            try:
                await self._tell_last_words(board, [run for run, _ in some])
                answers = await board.settle([ending for _, ending in some])
            except IngotError as error:
                log.warning("settle_failed", jobs=len(some), code=error.code, detail=error.detail)
                self._judge(error)
                if error.status in REFUSED:
                    await self._settle_apart(board, some, error.detail)
                    return
                await asyncio.sleep(pause)
                pause = min(2 * pause, AGAIN_SECONDS_MAX)
                continue
            for one, answer in zip(some, answers, strict=True):
                if answer.code is not None:
                    log.warning("not_settled", job_id=answer.id, code=answer.code, detail=answer.detail)
                if answer.code in REFUSED_CODES:
                    await self._settle_apart(board, [one], answer.detail or answer.code)
                elif answer.code == OutputMissing.code:
                    await self._settle_apart(board, [one], answer.detail or answer.code, retry=True)
            return

    async def _settle_apart(
        self, board: Board, some: list[tuple[Run, Ending]], why: str, *, retry: bool = False
    ) -> None:
        """One of these cannot be told as it is: it costs the others nothing, and is told as a failure."""
        if len(some) > 1:
            for one in some:
                await self._settle(board, [one])
            return
        ((run, ending),) = some
        if not isinstance(ending, Broke):
            told = f"the server does not take how it ended: {why}"
            await self._settle(board, [(run, Broke(id=run.id, fence=run.fence, error=told, retry=retry))])

    async def _tell_last_words(self, board: Board, ended: list[Run]) -> None:
        """Tell what these wrote last. All runs are named with them: what is not named is given back.

        Words that the server does not take keep nobody from telling how they ended.
        """
        try:
            for _ in range(LOG_PARTS_MAX):
                if not any(run.job.has_news for run in ended):
                    return
                await tell_news(board, self._runs, self._hear)
        except IngotError as error:
            if error.status not in REFUSED:
                raise
            log.warning("logs_refused", code=error.code, detail=error.detail)

    def _hear(self, runs: Sequence[Run], answer: WorkerBeatAnswer) -> None:
        """What the server says of these."""
        for run, why in _to_stop(runs, answer):
            self._stop(run, why)
        if answer.drain:
            self._drain.set()

    def _judge(self, error: IngotError) -> None:
        """Whether there is any use in going on."""
        if error.status in UNWANTED or isinstance(error, HeartStopped):
            self._fault = self._fault or error
            self._drain.set()

    def _stop(self, run: Run, why: Why) -> None:
        run.stop(why)
        task = self._tasks.get(run)
        if task is not None and run.handler.is_async and not run.interrupted:
            run.interrupted = True
            task.cancel()

    async def _finish(self) -> None:
        """Let what runs come to its end for a while, and then have it stop, to be given back."""
        if self._tasks and self._fault is None:
            await asyncio.wait(self._tasks.values(), timeout=self._drain_seconds)
        for run in list(self._tasks):
            self._stop(run, "drain" if self._fault is None else "lost")
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=STOP_SECONDS)


async def _registered(board: Board, types: Sequence[str], stopping: asyncio.Event) -> float | None:
    """How often to be heard of, once the server is there; `None` when told to go before."""
    pause = AGAIN_SECONDS
    while not stopping.is_set():
        try:
            return await _unless(stopping, board.register(types))
        except IngotError as error:
            if error.status not in AWAY:
                raise
            log.warning("waiting_for_server", code=error.code, detail=error.detail, hint=error.hint)
        await wait_for(stopping, pause)
        pause = min(2 * pause, AGAIN_SECONDS_MAX)
    return None


async def _unless(stopping: asyncio.Event, registering: Awaitable[float]) -> float | None:
    """The answer; told to go meanwhile, it has a moment to come, and is `None` when it does not."""
    answer, told = asyncio.ensure_future(registering), asyncio.create_task(stopping.wait())
    await asyncio.wait({answer, told}, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    await asyncio.wait({answer}, timeout=CLAIM_END_SECONDS)
    if not answer.done():
        answer.cancel()
        await asyncio.wait({answer})
    return None if answer.cancelled() else answer.result()


def _to_stop(runs: Sequence[Run], answer: WorkerBeatAnswer) -> list[tuple[Run, Why]]:
    """Those of these runs that are to stop. The answer is to them: a job that was claimed anew is another run."""
    told = {held.id: held for held in answer.jobs}
    stopped: list[tuple[Run, Why]] = []
    for run in runs:
        if (held := told.get(run.id)) is not None and (held.lost or held.cancel_requested):
            stopped.append((run, "lost" if held.lost else "canceled"))
    return stopped


async def _first(*ends: asyncio.Event | asyncio.Task[None]) -> None:
    """Wait for the first of these."""
    tasks = [end if isinstance(end, asyncio.Task) else asyncio.create_task(end.wait()) for end in ends]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task, end in zip(tasks, ends, strict=True):
        if not isinstance(end, asyncio.Task):
            task.cancel()


async def _end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
