"""The heartbeat of a worker: one for all its jobs, sent from its own thread so that no handler can delay it."""

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
from ingot.worker.server_availability import ServerAvailability, is_unavailable

WAIT_SECONDS: Final = 30.0  # Proxies usually allow a request to wait for a minute.
UPDATE_SECONDS: Final = 1.0  # Minimum interval between updates.
NEW_ATTEMPT_SECONDS: Final = 0.5  # An attempt that runs longer is reported, so that it can be asked to stop.
RETRY_SECONDS: Final = 1.0
log = structlog.get_logger("ingot.worker")
HEARTBEAT_LOG_CHARS_MAX: Final = 2 * 1024 * 1024  # For all jobs of one heartbeat together.
ResponseListener = Callable[[Sequence[RunningAttempt], WorkerHeartbeatResponse], None]


class HeartbeatStopped(IngotError):
    """The heartbeat of the worker has stopped."""

    code = "heart_stopped"
    status = 500
    hint = "See the worker's log for the reason, and restart the worker."


class HeartbeatThread:
    """A thread that renews leases, sends progress and logs, and reports which attempts have to stop.

    `response_listener` and `failure_listener` are called in this thread.
    """

    def __init__(
        self,
        create_job_source: Callable[[], JobSource],
        attempts: Mapping[str, RunningAttempt],
        response_listener: ResponseListener,
        *,
        interval_seconds: float,
        types: Sequence[str],
        failure_listener: Callable[[IngotError], None],
        availability: ServerAvailability,
    ) -> None:
        self._create_job_source = create_job_source
        self._attempts = attempts
        self._response_listener = response_listener
        self._failure_listener = failure_listener
        self._availability = availability
        self._types = types
        self._wait_seconds = min(WAIT_SECONDS, interval_seconds)
        self._thread = threading.Thread(target=self._run_thread, name="ingot-heartbeat", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._update_event: asyncio.Event | None = None
        self._stop_event: asyncio.Event | None = None
        self._ready = threading.Event()

    def start(self) -> None:
        """Start the thread and wait until it runs."""
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """Stop the thread and wait until it has ended."""
        if self._loop is not None and self._stop_event is not None:
            self._loop.call_soon_threadsafe(self._stop_event.set)
        self._thread.join()

    def wake(self) -> None:
        """Report that an attempt has an update to send. Thread-safe, and cheap enough to call for every print."""
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
        job_source = self._create_job_source()
        stop_task = asyncio.create_task(self._stop_event.wait())
        try:
            while not self._stop_event.is_set():
                heartbeat_task = asyncio.create_task(self._heartbeat_or_register(job_source))
                await asyncio.wait({heartbeat_task, stop_task}, return_when=asyncio.FIRST_COMPLETED)
                if not heartbeat_task.done():
                    heartbeat_task.cancel()
                await asyncio.wait({heartbeat_task})
                if not heartbeat_task.cancelled() and (error := heartbeat_task.exception()) is not None:
                    if not (isinstance(error, IngotError) and is_unavailable(error)):
                        log.warning("heartbeat_failed", error=str(error))
                    if isinstance(error, IngotError):
                        self._failure_listener(error)
                    await asyncio.wait({stop_task}, timeout=RETRY_SECONDS)
        finally:
            stop_task.cancel()
            await job_source.close()

    async def _heartbeat_or_register(self, job_source: JobSource) -> None:
        try:
            await self._send_heartbeat(job_source)
        except WorkerNotFound:  # The registration was removed, and the jobs of the worker were released.
            with self._availability.request():
                await job_source.register(self._types)

    async def _send_heartbeat(self, job_source: JobSource) -> None:
        """Send pending updates, or else a heartbeat that waits until the server has something to report.

        The waiting heartbeat is canceled when there is an update to send or a new attempt to report.
        """
        assert self._update_event is not None
        if await send_updates(job_source, self._attempts, self._response_listener, self._availability):
            await asyncio.sleep(UPDATE_SECONDS)
            return
        self._update_event.clear()
        attempts = list(self._attempts.values())
        reported = set(attempts)
        job_heartbeats = [attempt.job_heartbeat(update) for attempt, update in _pending_updates(attempts).items()]
        wait_seconds = self._availability.wait_seconds(self._wait_seconds)
        request = self._availability.request()
        waiting = asyncio.ensure_future(job_source.heartbeat(job_heartbeats, wait_seconds=wait_seconds))
        update_task = asyncio.create_task(self._update_event.wait())
        unreported: set[RunningAttempt] = set()
        while not (waiting.done() or update_task.done()):
            await asyncio.wait({waiting, update_task}, timeout=NEW_ATTEMPT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            previous = unreported
            # Finished attempts are left out, because renewing their leases would delay their settlement.
            unreported = {attempt for attempt in list(self._attempts.values()) if not attempt.is_finished} - reported
            if previous & unreported:
                break
        update_task.cancel()
        if waiting.done():
            with request:
                response = waiting.result()
            self._response_listener(attempts, response)
            # An attempt that was settled during the wait is reported as lost, and the server responds at once. With
            # short jobs this happens all the time, so limit the rate.
            if any(lease_status.lost for lease_status in response.jobs):
                await asyncio.sleep(UPDATE_SECONDS)
        else:
            waiting.cancel()
            await asyncio.wait({waiting})


async def send_updates(
    job_source: JobSource,
    attempts: Mapping[str, RunningAttempt],
    response_listener: ResponseListener,
    availability: ServerAvailability,
) -> bool:
    """Send a heartbeat with the pending updates of these attempts. Return whether there were any."""
    updates = _pending_updates(list(attempts.values()))
    if not any(updates.values()):
        return False
    job_heartbeats = [attempt.job_heartbeat(update) for attempt, update in updates.items()]
    with availability.request():
        response = await job_source.heartbeat(job_heartbeats, wait_seconds=0)
    response_listener(list(updates), response)
    for attempt, update in updates.items():
        attempt.job.mark_sent(update)
    return True


def _pending_updates(attempts: Sequence[RunningAttempt]) -> dict[RunningAttempt, AttemptUpdate]:
    """Return the update of each attempt, with as much of the logs as one heartbeat can hold."""
    updates, chars_left = {}, HEARTBEAT_LOG_CHARS_MAX
    for attempt in attempts:
        updates[attempt] = attempt.job.pending_update(min(chars_left, LOG_CHARS_MAX))
        chars_left -= len(updates[attempt].log)
    return updates
