"""Runs the handler of an attempt and determines the outcome."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec

from ingot.jobs.checks import ERROR_CHARS_MAX
from ingot.wire.jobs import AttemptFailed, AttemptReleased, AttemptSnoozed, AttemptSucceeded
from ingot.worker.attempt import RunningAttempt
from ingot.worker.capture import capture_job_output
from ingot.worker.handler_errors import full_traceback, handler_stack
from ingot.worker.isolation import IsolatedHandlerFailed, ProcessExited, Templates, run_isolated
from ingot.worker.job import NoRetry, SnoozeSignal, Stopped, sanitize_text
from ingot.worker.ports import ReportedOutcome
from ingot.worker.result_encoding import describe_error, encode_result


async def execute_attempt(
    attempt: RunningAttempt, threads: ThreadPoolExecutor, templates: Templates
) -> ReportedOutcome:
    """Run the handler on the event loop, in a thread or in its own process, and return the outcome.

    After a timeout, a plain handler may still be running in `attempt.thread_future`.
    """
    time_limit = asyncio.timeout(attempt.timeout_seconds)
    try:
        async with time_limit:
            result = await _run_handler(attempt, threads, templates)
        return _outcome_of_result(attempt, result)
    except TimeoutError as error:
        if not time_limit.expired():
            return _outcome_of_exception(attempt, error)
        attempt.stop("timeout")
        if attempt.handler.isolate and attempt.thread_future is not None:
            await asyncio.wait({attempt.thread_future})  # Wait until its processes have ended.
        message = f"the handler took longer than {attempt.timeout_seconds:g} seconds"
        return _failure_outcome(attempt, message, timed_out=True)
    except SnoozeSignal as signal:
        return AttemptSnoozed(id=attempt.id, fence=attempt.fence, seconds=signal.seconds)
    except (ProcessExited, IsolatedHandlerFailed) as error:
        if attempt.stop_reason is not None:
            return AttemptReleased(id=attempt.id, fence=attempt.fence)
        return _failure_outcome(attempt, str(error), exit_code=getattr(error, "exit_code", None))
    except NoRetry as error:
        attempt.stack = attempt.stack or handler_stack(error)
        return _failure_outcome(attempt, str(error) or "the handler raised NoRetry", retry=False)
    except (Stopped, asyncio.CancelledError):
        if attempt.stop_reason is None:  # The handler raised this although the worker did not ask it to stop.
            return _failure_outcome(attempt, "the handler stopped although its job did not have to stop")
        return AttemptReleased(id=attempt.id, fence=attempt.fence)
    except BaseException as error:  # Includes KeyboardInterrupt: only the handler can have raised it here.
        return _outcome_of_exception(attempt, error)


async def _run_handler(attempt: RunningAttempt, threads: ThreadPoolExecutor, templates: Templates) -> Any:
    if attempt.job.data.payload_blob is not None:
        await _run_in_thread(attempt, threads, _fetch_payload)
    if attempt.handler.is_async:
        with capture_job_output(attempt.job):
            return await attempt.handler.function(attempt.job)
    if attempt.handler.isolate:
        return await _run_in_thread(attempt, threads, partial(run_isolated, templates=templates))
    return await _run_in_thread(attempt, threads, _call_function)


def _fetch_payload(attempt: RunningAttempt) -> None:
    attempt.job.fetch_payload()


def _call_function(attempt: RunningAttempt) -> Any:
    with capture_job_output(attempt.job):
        try:
            return attempt.handler.function(attempt.job)
        except StopIteration as error:  # A future cannot hold StopIteration and would never finish.
            raise RuntimeError("the handler raised StopIteration") from error


async def _run_in_thread(attempt: RunningAttempt, threads: ThreadPoolExecutor, call: Any) -> Any:
    """Call a function in a thread and wait for it.

    When this task is canceled, the thread continues in the background, because threads cannot be killed.
    """
    context = contextvars.copy_context()
    attempt.thread_future = asyncio.get_running_loop().run_in_executor(threads, context.run, call, attempt)
    attempt.thread_future.add_done_callback(_consume_exception)
    return await asyncio.shield(attempt.thread_future)


def _consume_exception(thread: asyncio.Future[Any]) -> None:
    """Retrieve the exception of an abandoned thread, so that asyncio does not report it."""
    if not thread.cancelled():
        thread.exception()


def _outcome_of_result(attempt: RunningAttempt, result: Any) -> ReportedOutcome:
    # The handler noticed the stop request and may have returned a partial result.
    if attempt.stop_reason == "drain" and attempt.job.has_seen_stop:
        return AttemptReleased(id=attempt.id, fence=attempt.fence)
    return AttemptSucceeded(
        id=attempt.id, fence=attempt.fence, result=msgspec.Raw(encode_result(result)), outputs=attempt.job.outputs
    )


def _outcome_of_exception(attempt: RunningAttempt, error: BaseException) -> ReportedOutcome:
    attempt.job.append_log(full_traceback(error))
    attempt.stack = handler_stack(error)
    return _failure_outcome(attempt, describe_error(error))


def _failure_outcome(
    attempt: RunningAttempt, error: str, *, retry: bool = True, exit_code: int | None = None, timed_out: bool = False
) -> ReportedOutcome:
    if attempt.stop_reason == "drain":  # Errors after a stop request do not count as failures of the job.
        return AttemptReleased(id=attempt.id, fence=attempt.fence)
    message = sanitize_text(error)[:ERROR_CHARS_MAX]
    return AttemptFailed(
        id=attempt.id, fence=attempt.fence, error=message, retry=retry, exit_code=exit_code, timed_out=timed_out
    )
