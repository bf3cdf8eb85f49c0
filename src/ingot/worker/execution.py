"""Running a handler: on the loop, in a thread, or in a process of its own; and what came of it."""

from __future__ import annotations

import asyncio
import contextvars
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec

from ingot.jobs.checks import ERROR_CHARS_MAX
from ingot.wire.jobs import AttemptFailed, AttemptReleased, AttemptSucceeded
from ingot.wire.jobs import AttemptSnoozed as SnoozedEnding
from ingot.worker.attempt import RunningAttempt
from ingot.worker.capture import capture_job_output
from ingot.worker.isolation import IsolatedHandlerFailed, ProcessExited, Templates, run_isolated
from ingot.worker.job import NoRetry, SnoozeSignal, Stopped, sanitize_text
from ingot.worker.ports import ReportedOutcome
from ingot.worker.result_encoding import describe_error, encode_result


async def execute_attempt(run: RunningAttempt, threads: ThreadPoolExecutor, templates: Templates) -> ReportedOutcome:
    """Run the handler, and tell how that ended. One that overran its time may still be at work in `run.thread`."""
    time_limit = asyncio.timeout(run.timeout_seconds)
    try:
        async with time_limit:
            result = await _run_handler(run, threads, templates)
        return _outcome_of_result(run, result)
    except TimeoutError as error:
        if not time_limit.expired():
            return _outcome_of_exception(run, error)
        run.stop("timeout")
        if run.handler.isolate and run.thread_future is not None:
            await asyncio.wait({run.thread_future})  # Until its processes are gone.
        return _failure_outcome(run, f"it took longer than {run.timeout_seconds:g} seconds")
    except SnoozeSignal as snoozed:
        return SnoozedEnding(id=run.id, fence=run.fence, seconds=snoozed.seconds)
    except (ProcessExited, IsolatedHandlerFailed) as error:
        if run.stop_reason is not None:
            return AttemptReleased(id=run.id, fence=run.fence)
        return _failure_outcome(run, str(error), exit_code=getattr(error, "exit_code", None))
    except NoRetry as error:
        return _failure_outcome(run, str(error) or "the handler said not to retry", retry=False)
    except (Stopped, asyncio.CancelledError):
        if run.stop_reason is None:  # The handler stopped by itself, without being told.
            return _failure_outcome(run, "the handler stopped before it was done")
        return AttemptReleased(id=run.id, fence=run.fence)
    except BaseException as error:  # An interrupt too: signals do not raise it here, so that the handler did.
        return _outcome_of_exception(run, error)


async def _run_handler(run: RunningAttempt, threads: ThreadPoolExecutor, templates: Templates) -> Any:
    if run.job.data.payload_blob is not None:
        await _run_in_thread(run, threads, _fetch_payload)
    if run.handler.is_async:
        with capture_job_output(run.job):
            return await run.handler.function(run.job)
    if run.handler.isolate:
        return await _run_in_thread(run, threads, partial(run_isolated, templates=templates))
    return await _run_in_thread(run, threads, _call_function)


def _fetch_payload(run: RunningAttempt) -> None:
    run.job.fetch_payload()


def _call_function(run: RunningAttempt) -> Any:
    with capture_job_output(run.job):
        try:
            return run.handler.function(run.job)
        except StopIteration as error:  # A future takes no such thing, and would wait for ever.
            raise RuntimeError("the handler raised StopIteration") from error


async def _run_in_thread(run: RunningAttempt, threads: ThreadPoolExecutor, call: Any) -> Any:
    """Wait for a plain function. One that does not stop when told is left behind: a thread cannot be ended."""
    context = contextvars.copy_context()
    run.thread_future = asyncio.get_running_loop().run_in_executor(threads, context.run, call, run)
    run.thread_future.add_done_callback(_consume_exception)
    return await asyncio.shield(run.thread_future)


def _consume_exception(thread: asyncio.Future[Any]) -> None:
    """What comes of a thread that was left behind is nobody's."""
    if not thread.cancelled():
        thread.exception()


def _outcome_of_result(run: RunningAttempt, result: Any) -> ReportedOutcome:
    if run.stop_reason == "drain" and run.job.has_seen_stop:  # It broke off: this may be half of it.
        return AttemptReleased(id=run.id, fence=run.fence)
    return AttemptSucceeded(
        id=run.id, fence=run.fence, result=msgspec.Raw(encode_result(result)), outputs=run.job.outputs
    )


def _outcome_of_exception(run: RunningAttempt, error: BaseException) -> ReportedOutcome:
    run.job.log("".join(traceback.format_exception(error)), end="")
    return _failure_outcome(run, describe_error(error))


def _failure_outcome(
    run: RunningAttempt, error: str, *, retry: bool = True, exit_code: int | None = None
) -> ReportedOutcome:
    if run.stop_reason == "drain":  # What comes of being told to stop is no failure of the job.
        return AttemptReleased(id=run.id, fence=run.fence)
    told = sanitize_text(error)[:ERROR_CHARS_MAX]
    return AttemptFailed(id=run.id, fence=run.fence, error=told, retry=retry, exit_code=exit_code)
