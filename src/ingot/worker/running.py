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
from ingot.wire.jobs import Broke, Released, Succeeded
from ingot.wire.jobs import Snoozed as SnoozedEnding
from ingot.worker.capture import captured
from ingot.worker.isolation import Ended, Failed, Templates, run_isolated
from ingot.worker.job import NoRetry, Snoozed, Stopped, sendable
from ingot.worker.ports import Ending
from ingot.worker.results import error_text, result_text
from ingot.worker.run import Run


async def ending_of(run: Run, threads: ThreadPoolExecutor, templates: Templates) -> Ending:
    """Run the handler, and tell how that ended. One that overran its time may still be at work in `run.thread`."""
    time_limit = asyncio.timeout(run.timeout_seconds)
    try:
        async with time_limit:
            result = await _result_of(run, threads, templates)
        return _returned(run, result)
    except TimeoutError as error:
        if not time_limit.expired():
            return _raised(run, error)
        run.stop("timeout")
        if run.handler.isolate and run.thread is not None:
            await asyncio.wait({run.thread})  # Until its processes are gone.
        return _broke(run, f"it took longer than {run.timeout_seconds:g} seconds")
    except Snoozed as snoozed:
        return SnoozedEnding(id=run.id, fence=run.fence, seconds=snoozed.seconds)
    except (Ended, Failed) as error:
        if run.why is not None:
            return Released(id=run.id, fence=run.fence)
        return _broke(run, str(error), exit_code=getattr(error, "exit_code", None))
    except NoRetry as error:
        return _broke(run, str(error) or "the handler said not to retry", retry=False)
    except (Stopped, asyncio.CancelledError):
        if run.why is None:  # The handler stopped by itself, without being told.
            return _broke(run, "the handler stopped before it was done")
        return Released(id=run.id, fence=run.fence)
    except BaseException as error:  # An interrupt too: signals do not raise it here, so that the handler did.
        return _raised(run, error)


async def _result_of(run: Run, threads: ThreadPoolExecutor, templates: Templates) -> Any:
    if run.job.data.payload_blob is not None:
        await _in_thread(run, threads, _fetch_payload)
    if run.handler.is_async:
        with captured(run.job):
            return await run.handler.function(run.job)
    if run.handler.isolate:
        return await _in_thread(run, threads, partial(run_isolated, templates=templates))
    return await _in_thread(run, threads, _call)


def _fetch_payload(run: Run) -> None:
    run.job.fetch_payload()


def _call(run: Run) -> Any:
    with captured(run.job):
        try:
            return run.handler.function(run.job)
        except StopIteration as error:  # A future takes no such thing, and would wait for ever.
            raise RuntimeError("the handler raised StopIteration") from error


async def _in_thread(run: Run, threads: ThreadPoolExecutor, call: Any) -> Any:
    """Wait for a plain function. One that does not stop when told is left behind: a thread cannot be ended."""
    context = contextvars.copy_context()
    run.thread = asyncio.get_running_loop().run_in_executor(threads, context.run, call, run)
    run.thread.add_done_callback(_look)
    return await asyncio.shield(run.thread)


def _look(thread: asyncio.Future[Any]) -> None:
    """What comes of a thread that was left behind is nobody's."""
    if not thread.cancelled():
        thread.exception()


def _returned(run: Run, result: Any) -> Ending:
    if run.why == "drain" and run.job.saw_stop:  # It broke off: this may be half of it.
        return Released(id=run.id, fence=run.fence)
    return Succeeded(id=run.id, fence=run.fence, result=msgspec.Raw(result_text(result)), outputs=run.job.outputs)


def _raised(run: Run, error: BaseException) -> Ending:
    run.job.log("".join(traceback.format_exception(error)), end="")
    return _broke(run, error_text(error))


def _broke(run: Run, error: str, *, retry: bool = True, exit_code: int | None = None) -> Ending:
    if run.why == "drain":  # What comes of being told to stop is no failure of the job.
        return Released(id=run.id, fence=run.fence)
    told = sendable(error)[:ERROR_CHARS_MAX]
    return Broke(id=run.id, fence=run.fence, error=told, retry=retry, exit_code=exit_code)
