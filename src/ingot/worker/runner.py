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
from ingot.kernel.msgspec_warmup import prepare_structs
from ingot.kernel.waits import wait_for
from ingot.wire.jobs import AttemptFailed
from ingot.wire.workers import WorkerHeartbeatResponse
from ingot.worker.app import Handler, Worker
from ingot.worker.attempt import RunningAttempt, StopReason
from ingot.worker.capture import capture_process_output
from ingot.worker.execution import execute_attempt
from ingot.worker.heartbeat import HeartbeatStopped, HeartbeatThread, send_updates
from ingot.worker.hours import Hours
from ingot.worker.http_job_source import HttpFileClient
from ingot.worker.isolation import Templates
from ingot.worker.job import UNSENT_LOG_CHARS_MAX, WorkerJob
from ingot.worker.ports import ClaimedJob, JobSource, ReportedOutcome
from ingot.worker.workdir import WorkdirRoot

CLAIM_WAIT_SECONDS: Final = 25.0
HOURS_POLL_SECONDS: Final = 0.5  # How often it is looked whether the hours have begun.
CLAIM_STOP_SECONDS: Final = 3.0  # That claims have to end when no more is wanted.
RETRY_SECONDS: Final = 0.5
RETRY_SECONDS_MAX: Final = 15.0
DRAIN_SECONDS: Final = 30.0
BACKGROUND_THREADS: Final = 4  # Threads that send logs and remove files.
LOG_UPLOAD_SECONDS: Final = 30.0  # That a long log has to be sent.
DRAIN_LOG_UPLOAD_SECONDS: Final = 5.0  # And that of a job which is given back: its end has to be told too.
STOP_SECONDS: Final = 10.0  # That handlers have to stop when told to, and answers to come.
UNAVAILABLE_STATUSES: Final = frozenset({429, 503})  # A server that answers so, or not at all, may be there later.
UNAUTHORIZED_STATUSES: Final = frozenset({401, 403})  # With this credential it never will.
REJECTED_STATUSES: Final = frozenset({400, 413, 422})
REJECTED_CODES: Final = frozenset({InvalidInput.code, PayloadTooLarge.code})
SETTLE_BATCH_MAX: Final = 1000
UNSETTLED_MAX: Final = 2000  # With more to tell, no more is taken: what is held must fit in a heartbeat.
LOG_PARTS_MAX: Final = UNSENT_LOG_CHARS_MAX // LOG_CHARS_MAX + 1
STILL_RUNNING_HINT: Final = "Its place stays taken until it ends: have it look at job.canceled, or isolate=True."
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
        boards: Callable[[], JobSource],
        *,
        drain_seconds: float = DRAIN_SECONDS,
        hours: Hours | None = None,
        clock: Clock | None = None,
        echo: bool = False,
        file_client: HttpFileClient | None = None,
        templates: Templates | None = None,
    ) -> None:
        self._echo = echo
        self.file_client = file_client
        self._workdir_root = WorkdirRoot()
        self._templates = templates or Templates()
        self._owns_templates = templates is None
        self._background_threads = ThreadPoolExecutor(BACKGROUND_THREADS, thread_name_prefix="ingot-clerk")
        self._hours = hours
        self._clock = clock or WallClock()
        self._worker = worker
        self._create_job_source = boards
        self._drain_seconds = drain_seconds
        self._attempts: dict[str, RunningAttempt] = {}  # Until the server knows how they ended.
        self._tasks: dict[RunningAttempt, asyncio.Task[None]] = {}
        self._busy_slots: Counter[str] = Counter()
        self._slot_freed: dict[str, asyncio.Event] = {type: asyncio.Event() for type in worker.handlers}
        self._unsettled: asyncio.Queue[tuple[RunningAttempt, ReportedOutcome]] = asyncio.Queue()
        self._drain_requested = asyncio.Event()
        self._claiming_stopped = False
        self._heartbeat: HeartbeatThread | None = None
        self._fatal_error: IngotError | None = None

    @property
    def is_busy(self) -> bool:
        """Whether handlers are at work: after the end these are threads that did not stop when told to."""
        return any(self._busy_slots.values())

    async def run(self, stopping: asyncio.Event) -> None:
        """Work until `stopping` is set or the server says so, then finish or give back what runs, and go.

        A server that is not there yet is waited for. Raises what it says when it will have nothing to do with us.
        """
        prepare_structs()
        loop = asyncio.get_running_loop()
        board = self._create_job_source()
        types = sorted(self._worker.handlers)
        try:
            every = await _register_with_retry(board, types, stopping)
        except BaseException:
            await board.close()
            raise
        if every is None:
            await board.close()
            return

        def heard(runs: Sequence[RunningAttempt], answer: WorkerHeartbeatResponse) -> None:
            loop.call_soon_threadsafe(self._handle_heartbeat_response, runs, answer)
            for run, why in _attempts_to_stop(runs, answer):
                run.stop(why)  # At once, whatever holds up the loop.

        def failed(error: IngotError) -> None:
            loop.call_soon_threadsafe(self._drain_if_fatal, error)

        self._heartbeat = HeartbeatThread(
            self._create_job_source, self._attempts, heard, interval_seconds=every, types=types, failure_listener=failed
        )
        self._heartbeat.start()
        threads = ThreadPoolExecutor(max(1, sum(one.concurrency for one in self._worker.handlers.values())))
        settling = asyncio.create_task(self._settle_loop(board))
        claiming = [
            asyncio.create_task(self._claim_loop(board, handler, threads)) for handler in self._worker.handlers.values()
        ]
        try:
            with capture_process_output(echo=self._echo):
                await _wait_for_first(stopping, self._drain_requested, *claiming)
                await self._stop_claiming(board, claiming)
                await self._finish_attempts()
                for task in claiming:
                    if not task.cancelled():
                        task.result()  # What it raised, if anything, after all that ran was seen to.
                if self._fatal_error is not None:
                    raise self._fatal_error
        finally:
            await _cancel_tasks(*claiming)
            with suppress(TimeoutError):  # Of a server that is away nobody waits for ever.
                async with asyncio.timeout(0 if self._fatal_error else max(self._drain_seconds, STOP_SECONDS)):
                    await self._unsettled.join()
            await _cancel_tasks(settling)
            self._heartbeat.stop()
            threads.shutdown(wait=False, cancel_futures=True)
            self._background_threads.shutdown(wait=False, cancel_futures=True)
            if self._owns_templates:
                await asyncio.to_thread(self._templates.close)
            self._workdir_root.close()
            if self.file_client is not None:
                self.file_client.close()
            with suppress(IngotError):
                await board.leave()
            await board.close()

    # -- claiming -------------------------------------------------------------------------------------------

    async def _claim_loop(self, board: JobSource, handler: Handler, threads: ThreadPoolExecutor) -> None:
        """Take work of one type whenever there is room for it."""
        pause = RETRY_SECONDS
        while not self._claiming_stopped:
            free = handler.concurrency - self._busy_slots[handler.type]
            if free <= 0 or self._unsettled.qsize() > UNSETTLED_MAX:
                self._slot_freed[handler.type].clear()
                await self._slot_freed[handler.type].wait()
                continue
            if (open_seconds := self._claim_wait_seconds()) <= 0:
                await asyncio.sleep(HOURS_POLL_SECONDS)
                continue
            try:
                for work in await board.claim(handler.type, limit=free, wait_seconds=open_seconds):
                    self._start_attempt(handler, work, threads)
                pause = RETRY_SECONDS
                await asyncio.sleep(0)  # Handlers begin before more is asked for.
            except IngotError as error:
                log.warning("claim_failed", type=handler.type, code=error.code, detail=error.detail, hint=error.hint)
                self._drain_if_fatal(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_SECONDS_MAX)

    async def _stop_claiming(self, board: JobSource, claiming: Sequence[asyncio.Task[None]]) -> None:
        """Let claims come to their end: of one that is given up nobody knows what it took."""
        self._claiming_stopped = True
        for freed in self._slot_freed.values():
            freed.set()
        with suppress(IngotError, TimeoutError):
            async with asyncio.timeout(CLAIM_STOP_SECONDS):
                await board.drain()
                await asyncio.wait(claiming)
        await _cancel_tasks(*claiming)

    def _claim_wait_seconds(self) -> float:
        """How long a claim may wait: not beyond the hours, outside of which it is 0."""
        if self._hours is None:
            return CLAIM_WAIT_SECONDS
        return self._hours.open_seconds(to_datetime(self._clock.micros()), seconds_max=CLAIM_WAIT_SECONDS)

    def _start_attempt(self, handler: Handler, work: ClaimedJob, threads: ThreadPoolExecutor) -> None:
        assert self._heartbeat is not None
        job = WorkerJob(work.job, self._heartbeat.wake, file_client=self.file_client, workdir_root=self._workdir_root)
        run = RunningAttempt(handler, work, job)
        if (before := self._attempts.get(run.id)) is not None:
            self._stop_attempt(before, "lost")  # We were thought gone, and got the job again.
        self._attempts[run.id] = run
        self._busy_slots[handler.type] += 1
        self._tasks[run] = asyncio.create_task(self._run_attempt(run, threads), name=f"job {run.id}")

    async def _run_attempt(self, run: RunningAttempt, threads: ThreadPoolExecutor) -> None:
        ending = await execute_attempt(run, threads, self._templates)
        run.is_interrupted = True  # There is nothing left to interrupt.
        if run.job.has_long_log and run.stop_reason != "lost":
            await self._upload_log(run)
        run.is_finished = True
        if run.thread_future is None or run.thread_future.done():
            self._free_slot(run)
        else:
            log.warning("handler_goes_on", type=run.handler.type, job_id=run.id, hint=STILL_RUNNING_HINT)
            run.thread_future.add_done_callback(lambda _: self._free_slot(run))
        del self._tasks[run]
        if run.stop_reason == "lost":
            self._forget_attempt(run)
        else:
            self._unsettled.put_nowait((run, ending))

    async def _upload_log(self, run: RunningAttempt) -> None:
        """Send a long log whole, before the end is told. That it cannot be costs the job nothing."""
        seconds = LOG_UPLOAD_SECONDS if run.stop_reason != "drain" else DRAIN_LOG_UPLOAD_SECONDS
        sending = asyncio.get_running_loop().run_in_executor(self._background_threads, run.job.upload_log, seconds)
        await asyncio.wait({sending}, timeout=seconds)
        if not sending.done():
            log.warning("log_not_kept", job_id=run.id, detail=f"it takes longer than {seconds:g} seconds")
            sending.add_done_callback(lambda done: done.cancelled() or done.exception())
        elif (error := sending.exception()) is not None:
            log.warning("log_not_kept", job_id=run.id, detail=str(error) or type(error).__name__)

    def _free_slot(self, run: RunningAttempt) -> None:
        self._busy_slots[run.handler.type] -= 1
        self._slot_freed[run.handler.type].set()
        if run.job.needs_cleanup:
            with suppress(RuntimeError):  # At the very end all is removed at once.
                self._background_threads.submit(run.job.close)

    def _forget_attempt(self, run: RunningAttempt) -> None:
        if self._attempts.get(run.id) is run:
            del self._attempts[run.id]

    # -- telling --------------------------------------------------------------------------------------------

    async def _settle_loop(self, board: JobSource) -> None:
        """Tell how jobs ended, those together that ended meanwhile."""
        while True:
            some = [await self._unsettled.get()]
            while len(some) < SETTLE_BATCH_MAX and not self._unsettled.empty():
                some.append(self._unsettled.get_nowait())
            await self._settle(board, some)
            for run, _ in some:
                self._forget_attempt(run)
                self._unsettled.task_done()
            for freed in self._slot_freed.values():
                freed.set()

    async def _settle(self, board: JobSource, some: list[tuple[RunningAttempt, ReportedOutcome]]) -> None:
        """Tell until it is told, or the jobs are somebody else's."""
        pause = RETRY_SECONDS
        while some := [(run, ending) for run, ending in some if run.stop_reason != "lost"]:
            try:
                await self._send_final_updates(board, [run for run, _ in some])
                answers = await board.settle([ending for _, ending in some])
            except IngotError as error:
                log.warning("settle_failed", jobs=len(some), code=error.code, detail=error.detail)
                self._drain_if_fatal(error)
                if error.status in REJECTED_STATUSES:
                    await self._settle_individually(board, some, error.detail)
                    return
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_SECONDS_MAX)
                continue
            for one, answer in zip(some, answers, strict=True):
                if answer.code is not None:
                    log.warning("not_settled", job_id=answer.id, code=answer.code, detail=answer.detail)
                if answer.code in REJECTED_CODES:
                    await self._settle_individually(board, [one], answer.detail or answer.code)
                elif answer.code == OutputMissing.code:
                    await self._settle_individually(board, [one], answer.detail or answer.code, retry=True)
            return

    async def _settle_individually(
        self, board: JobSource, some: list[tuple[RunningAttempt, ReportedOutcome]], why: str, *, retry: bool = False
    ) -> None:
        """One of these cannot be told as it is: it costs the others nothing, and is told as a failure."""
        if len(some) > 1:
            for one in some:
                await self._settle(board, [one])
            return
        ((run, ending),) = some
        if not isinstance(ending, AttemptFailed):
            told = f"the server does not take how it ended: {why}"
            await self._settle(board, [(run, AttemptFailed(id=run.id, fence=run.fence, error=told, retry=retry))])

    async def _send_final_updates(self, board: JobSource, ended: list[RunningAttempt]) -> None:
        """Tell what these wrote last. All runs are named with them: what is not named is given back.

        Words that the server does not take keep nobody from telling how they ended.
        """
        try:
            for _ in range(LOG_PARTS_MAX):
                if not any(run.job.has_update for run in ended):
                    return
                await send_updates(board, self._attempts, self._handle_heartbeat_response)
        except IngotError as error:
            if error.status not in REJECTED_STATUSES:
                raise
            log.warning("logs_refused", code=error.code, detail=error.detail)

    def _handle_heartbeat_response(self, runs: Sequence[RunningAttempt], answer: WorkerHeartbeatResponse) -> None:
        """What the server says of these."""
        for run, why in _attempts_to_stop(runs, answer):
            self._stop_attempt(run, why)
        if answer.drain:
            self._drain_requested.set()

    def _drain_if_fatal(self, error: IngotError) -> None:
        """Whether there is any use in going on."""
        if error.status in UNAUTHORIZED_STATUSES or isinstance(error, HeartbeatStopped):
            self._fatal_error = self._fatal_error or error
            self._drain_requested.set()

    def _stop_attempt(self, run: RunningAttempt, why: StopReason) -> None:
        run.stop(why)
        task = self._tasks.get(run)
        if task is not None and run.handler.is_async and not run.is_interrupted:
            run.is_interrupted = True
            task.cancel()

    async def _finish_attempts(self) -> None:
        """Let what runs come to its end for a while, and then have it stop, to be given back."""
        if self._tasks and self._fatal_error is None:
            await asyncio.wait(self._tasks.values(), timeout=self._drain_seconds)
        for run in list(self._tasks):
            self._stop_attempt(run, "drain" if self._fatal_error is None else "lost")
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=STOP_SECONDS)


async def _register_with_retry(board: JobSource, types: Sequence[str], stopping: asyncio.Event) -> float | None:
    """How often to be heard of, once the server is there; `None` when told to go before."""
    pause = RETRY_SECONDS
    while not stopping.is_set():
        try:
            return await _registration_unless_stopping(stopping, board.register(types))
        except IngotError as error:
            if error.status not in UNAVAILABLE_STATUSES:
                raise
            log.warning("waiting_for_server", code=error.code, detail=error.detail, hint=error.hint)
        await wait_for(stopping, pause)
        pause = min(2 * pause, RETRY_SECONDS_MAX)
    return None


async def _registration_unless_stopping(stopping: asyncio.Event, registering: Awaitable[float]) -> float | None:
    """The answer; told to go meanwhile, it has a moment to come, and is `None` when it does not."""
    answer, told = asyncio.ensure_future(registering), asyncio.create_task(stopping.wait())
    await asyncio.wait({answer, told}, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    await asyncio.wait({answer}, timeout=CLAIM_STOP_SECONDS)
    if not answer.done():
        answer.cancel()
        await asyncio.wait({answer})
    return None if answer.cancelled() else answer.result()


def _attempts_to_stop(
    runs: Sequence[RunningAttempt], answer: WorkerHeartbeatResponse
) -> list[tuple[RunningAttempt, StopReason]]:
    """Those of these runs that are to stop. The answer is to them: a job that was claimed anew is another run."""
    told = {held.id: held for held in answer.jobs}
    stopped: list[tuple[RunningAttempt, StopReason]] = []
    for run in runs:
        if (held := told.get(run.id)) is not None and (held.lost or held.cancel_requested):
            stopped.append((run, "lost" if held.lost else "canceled"))
    return stopped


async def _wait_for_first(*ends: asyncio.Event | asyncio.Task[None]) -> None:
    """Wait for the first of these."""
    tasks = [end if isinstance(end, asyncio.Task) else asyncio.create_task(end.wait()) for end in ends]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task, end in zip(tasks, ends, strict=True):
        if not isinstance(end, asyncio.Task):
            task.cancel()


async def _cancel_tasks(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
