"""The runner of a worker: claims jobs, runs their handlers, settles the outcomes, and drains when asked to."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import structlog

from ingot.jobs.checks import LOG_CHARS_MAX
from ingot.jobs.errors import PayloadTooLarge, ProtocolMismatch
from ingot.jobs.files import OutputMissing
from ingot.kernel.clock import Clock, WallClock, to_datetime
from ingot.kernel.errors import IngotError, InvalidInput
from ingot.kernel.logs import context_fields
from ingot.kernel.msgspec_warmup import prepare_structs
from ingot.kernel.waits import wait_for
from ingot.wire.jobs import AttemptFailed, SettleResult
from ingot.wire.workers import WorkerHeartbeatResponse
from ingot.worker.app import Handler, Worker
from ingot.worker.attempt import RunningAttempt, StopReason
from ingot.worker.attempt_log import log_lost, log_settled, log_still_running, log_unsettled
from ingot.worker.capture import capture_process_output
from ingot.worker.execution import execute_attempt
from ingot.worker.heartbeat import HeartbeatStopped, HeartbeatThread, send_updates
from ingot.worker.hours import Hours
from ingot.worker.http_job_source import HttpFileClient
from ingot.worker.isolation import Templates
from ingot.worker.job import UNSENT_LOG_CHARS_MAX, WorkerJob
from ingot.worker.output_lines import OutputLines
from ingot.worker.ports import ClaimedJob, JobSource, ReportedOutcome
from ingot.worker.server_availability import ServerAvailability, is_unavailable
from ingot.worker.workdir import WorkdirRoot

CLAIM_WAIT_SECONDS: Final = 25.0
HOURS_POLL_SECONDS: Final = 0.5  # How often to check whether the working hours have begun.
CLAIM_STOP_SECONDS: Final = 3.0  # Time for waiting claims to end after a drain request.
RETRY_SECONDS: Final = 0.5
RETRY_SECONDS_MAX: Final = 15.0
DRAIN_SECONDS: Final = 30.0
BACKGROUND_THREADS: Final = 4  # Threads that upload logs and remove files.
LOG_UPLOAD_SECONDS: Final = 30.0  # Maximum time to upload a long log.
DRAIN_LOG_UPLOAD_SECONDS: Final = 5.0  # Shorter during a drain, because the job has to be released in time as well.
STOP_SECONDS: Final = 10.0  # Time for handlers to stop when asked to, and for outcomes to be settled.
UNAVAILABLE_STATUSES: Final = frozenset({429, 503})  # The server may accept the registration later.
UNAUTHORIZED_STATUSES: Final = frozenset({401, 403})  # The server rejects this credential for good.
REJECTED_STATUSES: Final = frozenset({400, 413, 422})
REJECTED_CODES: Final = frozenset({InvalidInput.code, PayloadTooLarge.code})
SETTLE_BATCH_MAX: Final = 1000
UNSETTLED_MAX: Final = 2000  # Claiming pauses above this, because all jobs of the worker must fit in one heartbeat.
LOG_PARTS_MAX: Final = UNSENT_LOG_CHARS_MAX // LOG_CHARS_MAX + 1
STILL_RUNNING_SECONDS: Final = 1.0  # Handlers that check for stop requests have ended by then.
log = structlog.get_logger("ingot.worker")


class Runner:
    """Runs the handlers of a worker.

    `create_job_source` is called once for each event loop: the runner's own and the heartbeat's. With `hours`, jobs are
    claimed only during these hours of `clock`. With `echo`, the output of handlers is also logged by the worker.
    Without a `file_client`, jobs cannot use files. `templates` that are passed in outlive the runner, and the caller
    closes them; otherwise the runner creates its own, and closes them.
    """

    def __init__(
        self,
        worker: Worker,
        create_job_source: Callable[[], JobSource],
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
        self._background_threads = ThreadPoolExecutor(BACKGROUND_THREADS, thread_name_prefix="ingot-background")
        self._hours = hours
        self._clock = clock or WallClock()
        self._worker = worker
        self._create_job_source = create_job_source
        self._drain_seconds = drain_seconds
        self._availability = ServerAvailability()
        self._attempts: dict[str, RunningAttempt] = {}  # By job ID, until the outcome is settled.
        self._tasks: dict[RunningAttempt, asyncio.Task[None]] = {}
        self._busy_slots: Counter[str] = Counter()
        self._slot_freed: dict[str, asyncio.Event] = {type: asyncio.Event() for type in worker.handlers}
        self._unsettled: asyncio.Queue[tuple[RunningAttempt, ReportedOutcome]] = asyncio.Queue()
        self._drain_requested = asyncio.Event()
        self._claiming_stopped = False
        self._heartbeat: HeartbeatThread | None = None
        self._fatal_error: IngotError | None = None

    @property
    def slots(self) -> int:
        """The number of jobs that can run at the same time."""
        return sum(handler.concurrency for handler in self._worker.handlers.values())

    @property
    def is_busy(self) -> bool:
        """Whether handlers are running. After `run` has returned, these are threads that did not stop when asked to."""
        return any(self._busy_slots.values())

    @property
    def running_jobs(self) -> int:
        """The number of handlers that are running."""
        return len(self._tasks)

    @property
    def drain_seconds(self) -> float:
        """How long running jobs may take to finish after a stop request, before they are released."""
        return self._drain_seconds

    async def run(self, stop_event: asyncio.Event) -> None:
        """Run jobs until `stop_event` is set or the server asks for a drain, then finish or release running jobs.

        Waits until the server is reachable. Raises the server's error if it rejects the worker.
        """
        prepare_structs()
        loop = asyncio.get_running_loop()
        job_source = self._create_job_source()
        types = sorted(self._worker.handlers)
        try:
            heartbeat_seconds = await _register_with_retry(job_source, types, stop_event, self._availability)
        except BaseException:
            await job_source.close()
            raise
        if heartbeat_seconds is None:
            await job_source.close()
            return

        def on_heartbeat_response(attempts: Sequence[RunningAttempt], response: WorkerHeartbeatResponse) -> None:
            loop.call_soon_threadsafe(self._handle_heartbeat_response, attempts, response)
            for attempt, reason in _attempts_to_stop(attempts, response):
                attempt.stop(reason)  # At once, even if a handler blocks the event loop.

        def on_heartbeat_failure(error: IngotError) -> None:
            loop.call_soon_threadsafe(self._drain_if_fatal, error)

        self._heartbeat = HeartbeatThread(
            self._create_job_source,
            self._attempts,
            on_heartbeat_response,
            interval_seconds=heartbeat_seconds,
            types=types,
            failure_listener=on_heartbeat_failure,
            availability=self._availability,
        )
        self._heartbeat.start()
        threads = ThreadPoolExecutor(max(1, self.slots))
        settle_task = asyncio.create_task(self._settle_loop(job_source))
        claim_tasks = [
            asyncio.create_task(self._claim_loop(job_source, handler, threads))
            for handler in self._worker.handlers.values()
        ]
        try:
            with capture_process_output():
                await _wait_for_first(stop_event, self._drain_requested, *claim_tasks)
                await self._stop_claiming(job_source, claim_tasks)
                await self._finish_attempts()
                for task in claim_tasks:
                    if not task.cancelled():
                        task.result()  # Raise an unexpected error only after the running jobs were handled.
                if self._fatal_error is not None:
                    raise self._fatal_error
        finally:
            await _cancel_tasks(*claim_tasks)
            with suppress(TimeoutError):  # Do not wait forever for a server that is unreachable.
                async with asyncio.timeout(0 if self._fatal_error else max(self._drain_seconds, STOP_SECONDS)):
                    await self._unsettled.join()
            await _cancel_tasks(settle_task)
            for attempt in list(self._attempts.values()):
                log_unsettled(attempt)
            self._heartbeat.stop()
            threads.shutdown(wait=False, cancel_futures=True)
            self._background_threads.shutdown(wait=False, cancel_futures=True)
            if self._owns_templates:
                await asyncio.to_thread(self._templates.close)
            self._workdir_root.close()
            if self.file_client is not None:
                self.file_client.close()
            with suppress(IngotError):
                await job_source.leave()
            await job_source.close()

    # -- claiming -------------------------------------------------------------------------------------------

    async def _claim_loop(self, job_source: JobSource, handler: Handler, threads: ThreadPoolExecutor) -> None:
        """Claim jobs of one type whenever it has free slots."""
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
                with self._availability.request():
                    wait_seconds = self._availability.wait_seconds(open_seconds)
                    claimed_jobs = await job_source.claim(handler.type, limit=free, wait_seconds=wait_seconds)
                for claimed_job in claimed_jobs:
                    self._start_attempt(handler, claimed_job, threads)
                pause = RETRY_SECONDS
                await asyncio.sleep(0)  # Let the handlers start before the next claim.
            except IngotError as error:
                if not is_unavailable(error):
                    fields = {"job_type": handler.type, "code": error.code, "detail": error.detail, "hint": error.hint}
                    log.warning("claim_failed", **fields)
                self._drain_if_fatal(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_SECONDS_MAX)

    async def _stop_claiming(self, job_source: JobSource, claim_tasks: Sequence[asyncio.Task[None]]) -> None:
        """Wait for claims to return before canceling them, because a canceled claim may have leased jobs."""
        self._claiming_stopped = True
        for freed in self._slot_freed.values():
            freed.set()
        with suppress(IngotError, TimeoutError):
            async with asyncio.timeout(CLAIM_STOP_SECONDS):
                await job_source.drain()
                await asyncio.wait(claim_tasks)
        await _cancel_tasks(*claim_tasks)

    def _claim_wait_seconds(self) -> float:
        """Return how long a claim may wait: not beyond the working hours, and 0 outside of them."""
        if self._hours is None:
            return CLAIM_WAIT_SECONDS
        return self._hours.open_seconds(to_datetime(self._clock.micros()), seconds_max=CLAIM_WAIT_SECONDS)

    def _start_attempt(self, handler: Handler, claimed_job: ClaimedJob, threads: ThreadPoolExecutor) -> None:
        assert self._heartbeat is not None
        job = WorkerJob(
            claimed_job.job,
            self._heartbeat.wake,
            file_client=self.file_client,
            workdir_root=self._workdir_root,
            output_lines=OutputLines(claimed_job.job.id, handler.type) if self._echo else None,
        )
        attempt = RunningAttempt(handler, claimed_job, job)
        if (previous := self._attempts.get(attempt.id)) is not None:
            self._stop_attempt(previous, "lost")  # Its lease expired, and this worker has claimed the job again.
        self._attempts[attempt.id] = attempt
        self._busy_slots[handler.type] += 1
        self._tasks[attempt] = asyncio.create_task(self._run_attempt(attempt, threads), name=f"job {attempt.id}")

    async def _run_attempt(self, attempt: RunningAttempt, threads: ThreadPoolExecutor) -> None:
        context_fields.set({"job_id": attempt.id, "job_type": attempt.handler.type})
        outcome = await execute_attempt(attempt, threads, self._templates)
        attempt.end()
        if attempt.job.has_long_log and attempt.stop_reason != "lost":
            await self._upload_log(attempt)
        attempt.is_finished = True
        if attempt.thread_future is None or attempt.thread_future.done():
            self._free_slot(attempt)
        else:
            attempt.thread_future.add_done_callback(lambda _: self._free_slot(attempt))
            # Most handlers end soon after their attempt.
            asyncio.get_running_loop().call_later(STILL_RUNNING_SECONDS, log_still_running, attempt)
        del self._tasks[attempt]
        if attempt.stop_reason == "lost":
            log_lost(attempt)
            self._forget_attempt(attempt)
        else:
            self._unsettled.put_nowait((attempt, outcome))

    async def _upload_log(self, attempt: RunningAttempt) -> None:
        """Upload a long log before the attempt is settled. Failures are logged and do not affect the job."""
        seconds = LOG_UPLOAD_SECONDS if attempt.stop_reason != "drain" else DRAIN_LOG_UPLOAD_SECONDS
        upload_future = asyncio.get_running_loop().run_in_executor(
            self._background_threads, attempt.job.upload_log, seconds
        )
        await asyncio.wait({upload_future}, timeout=seconds)
        if not upload_future.done():
            log.warning("log_not_kept", detail=f"the upload took longer than {seconds:g} seconds")
            upload_future.add_done_callback(lambda done: done.cancelled() or done.exception())
        elif (error := upload_future.exception()) is not None:
            log.warning("log_not_kept", detail=str(error) or type(error).__name__)

    def _free_slot(self, attempt: RunningAttempt) -> None:
        self._busy_slots[attempt.handler.type] -= 1
        self._slot_freed[attempt.handler.type].set()
        if attempt.job.needs_cleanup:
            with suppress(RuntimeError):  # The threads were shut down; `WorkdirRoot.close` removes all folders.
                self._background_threads.submit(attempt.job.close)

    def _forget_attempt(self, attempt: RunningAttempt) -> None:
        if self._attempts.get(attempt.id) is attempt:
            del self._attempts[attempt.id]

    # -- settling -------------------------------------------------------------------------------------------

    async def _settle_loop(self, job_source: JobSource) -> None:
        """Settle outcomes in batches: all that arrived while the previous batch was sent."""
        while True:
            batch = [await self._unsettled.get()]
            while len(batch) < SETTLE_BATCH_MAX and not self._unsettled.empty():
                batch.append(self._unsettled.get_nowait())
            await self._settle(job_source, batch)
            for attempt, _ in batch:
                self._forget_attempt(attempt)
                self._unsettled.task_done()
            for freed in self._slot_freed.values():
                freed.set()

    async def _settle(self, job_source: JobSource, batch: list[tuple[RunningAttempt, ReportedOutcome]]) -> None:
        """Settle a batch. Retry until the server accepts it or the leases are lost."""
        pause = RETRY_SECONDS
        while batch := _without_lost(batch):
            try:
                await self._send_final_updates(job_source, [attempt for attempt, _ in batch])
                with self._availability.request():
                    results = await job_source.settle([outcome for _, outcome in batch])
            except IngotError as error:
                if not is_unavailable(error):
                    log.warning("settle_failed", jobs=len(batch), code=error.code, detail=error.detail)
                self._drain_if_fatal(error)
                if error.status in REJECTED_STATUSES:
                    await self._settle_individually(job_source, batch, error.detail)
                    return
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_SECONDS_MAX)
                continue
            for pair, result in zip(batch, results, strict=True):
                is_output_missing = result.code == OutputMissing.code
                if is_output_missing or result.code in REJECTED_CODES:
                    reason = result.detail or result.code or ""
                    await self._settle_individually(job_source, [pair], reason, retry=is_output_missing)
                else:
                    log_settled(*pair, result)
            return

    async def _settle_individually(
        self,
        job_source: JobSource,
        batch: list[tuple[RunningAttempt, ReportedOutcome]],
        reason: str,
        *,
        retry: bool = False,
    ) -> None:
        """Settle a rejected batch one by one. An outcome that the server rejects by itself becomes a failure."""
        if len(batch) > 1:
            for pair in batch:
                await self._settle(job_source, [pair])
            return
        ((attempt, outcome),) = batch
        message = f"the server rejected the outcome: {reason}"
        if isinstance(outcome, AttemptFailed):
            log_settled(attempt, outcome, SettleResult(id=attempt.id, code=InvalidInput.code, detail=message))
            return
        failure = AttemptFailed(id=attempt.id, fence=attempt.fence, error=message, retry=retry)
        await self._settle(job_source, [(attempt, failure)])

    async def _send_final_updates(self, job_source: JobSource, finished: list[RunningAttempt]) -> None:
        """Send the remaining progress and logs of these attempts before they are settled.

        The heartbeat lists all running attempts, because the server releases jobs that are not listed. Text that the
        server rejects does not prevent the settlement.
        """
        try:
            for _ in range(LOG_PARTS_MAX):
                if not any(attempt.job.has_update for attempt in finished):
                    return
                await send_updates(job_source, self._attempts, self._handle_heartbeat_response, self._availability)
        except IngotError as error:
            if error.status not in REJECTED_STATUSES:
                raise
            log.warning("logs_refused", code=error.code, detail=error.detail)

    def _handle_heartbeat_response(self, attempts: Sequence[RunningAttempt], response: WorkerHeartbeatResponse) -> None:
        for attempt, reason in _attempts_to_stop(attempts, response):
            self._stop_attempt(attempt, reason)
        if response.drain:
            self._drain_requested.set()

    def _drain_if_fatal(self, error: IngotError) -> None:
        """Start a drain if the server rejects the credential or the protocol, or if the heartbeat has stopped."""
        if error.status in UNAUTHORIZED_STATUSES or isinstance(error, (HeartbeatStopped, ProtocolMismatch)):
            self._fatal_error = self._fatal_error or error
            self._drain_requested.set()

    def _stop_attempt(self, attempt: RunningAttempt, reason: StopReason) -> None:
        attempt.stop(reason)
        task = self._tasks.get(attempt)
        if task is not None and attempt.handler.is_async and not attempt.is_interrupted:
            attempt.is_interrupted = True
            task.cancel()

    async def _finish_attempts(self) -> None:
        """Give running handlers time to finish, then stop them so that their jobs are released."""
        if self._tasks and self._fatal_error is None:
            await asyncio.wait(self._tasks.values(), timeout=self._drain_seconds)
        for attempt in list(self._tasks):
            self._stop_attempt(attempt, "drain" if self._fatal_error is None else "lost")
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=STOP_SECONDS)


async def _register_with_retry(
    job_source: JobSource, types: Sequence[str], stop_event: asyncio.Event, availability: ServerAvailability
) -> float | None:
    """Register as soon as the server is reachable and return the heartbeat interval, or `None` if asked to stop."""
    pause = RETRY_SECONDS
    while not stop_event.is_set():
        began_at = time.monotonic()
        try:
            heartbeat_seconds = await _registration_unless_stopping(stop_event, job_source.register(types))
        except IngotError as error:
            if error.status not in UNAVAILABLE_STATUSES:
                raise
            availability.report_unavailable(error, began_at=began_at, event="waiting_for_server")
        else:
            availability.report_available(began_at=began_at)
            return heartbeat_seconds
        await wait_for(stop_event, pause)
        pause = min(2 * pause, RETRY_SECONDS_MAX)
    return None


async def _registration_unless_stopping(stop_event: asyncio.Event, registration: Awaitable[float]) -> float | None:
    """Return the result of a registration, or `None` if it does not end soon after a stop request."""
    register_task, stop_task = asyncio.ensure_future(registration), asyncio.create_task(stop_event.wait())
    await asyncio.wait({register_task, stop_task}, return_when=asyncio.FIRST_COMPLETED)
    stop_task.cancel()
    await asyncio.wait({register_task}, timeout=CLAIM_STOP_SECONDS)
    if not register_task.done():
        register_task.cancel()
        await asyncio.wait({register_task})
    return None if register_task.cancelled() else register_task.result()


def _without_lost(
    batch: list[tuple[RunningAttempt, ReportedOutcome]],
) -> list[tuple[RunningAttempt, ReportedOutcome]]:
    """Return the attempts of a batch that still hold their lease, and log the others."""
    for attempt, _ in batch:
        if attempt.stop_reason == "lost":
            log_lost(attempt)
    return [(attempt, outcome) for attempt, outcome in batch if attempt.stop_reason != "lost"]


def _attempts_to_stop(
    attempts: Sequence[RunningAttempt], response: WorkerHeartbeatResponse
) -> list[tuple[RunningAttempt, StopReason]]:
    """Return the attempts that have to stop.

    `attempts` are those of the heartbeat. A job that was claimed again meanwhile is a different attempt, to which the
    response does not apply.
    """
    leases = {lease.id: lease for lease in response.jobs}
    stopped: list[tuple[RunningAttempt, StopReason]] = []
    for attempt in attempts:
        if (lease := leases.get(attempt.id)) is not None and (lease.lost or lease.cancel_requested):
            stopped.append((attempt, "lost" if lease.lost else "canceled"))
    return stopped


async def _wait_for_first(*ends: asyncio.Event | asyncio.Task[None]) -> None:
    """Wait until one of these events is set or one of these tasks ends."""
    tasks = [end if isinstance(end, asyncio.Task) else asyncio.create_task(end.wait()) for end in ends]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task, end in zip(tasks, ends, strict=True):
        if not isinstance(end, asyncio.Task):
            task.cancel()


async def _cancel_tasks(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
