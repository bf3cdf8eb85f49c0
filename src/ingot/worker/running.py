"""Running a handler: on the loop, in a thread, or in a process of its own; and what came of it."""

from __future__ import annotations

import asyncio
import contextvars
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec

from ingot.jobs.checks import PAYLOAD_BYTES_MAX
from ingot.wire.jobs import Broke, Released, Succeeded
from ingot.wire.jobs import Snoozed as SnoozedEnding
from ingot.worker.capture import captured
from ingot.worker.isolation import Ended, Failed, run_isolated
from ingot.worker.job import NoRetry, Snoozed, Stopped
from ingot.worker.ports import Ending
from ingot.worker.run import Run

ERROR_CHARS_MAX: Final = 4000
_encode = msgspec.json.Encoder().encode


async def ending_of(run: Run, threads: ThreadPoolExecutor) -> Ending:
    """Run the handler, and tell how that ended."""
    time_limit = asyncio.timeout(run.timeout_seconds)
    try:
        async with time_limit:
            result = await _result_of(run, threads)
        return _succeeded(run, result)
    except TimeoutError as error:
        if not time_limit.expired():
            return _raised(run, error)
        run.stop("timeout")
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
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | GeneratorExit):
            raise
        return _raised(run, error)


async def _result_of(run: Run, threads: ThreadPoolExecutor) -> Any:
    if run.handler.is_async:
        return await _awaited(run)
    if run.handler.isolate:
        return await asyncio.get_running_loop().run_in_executor(threads, run_isolated, run)
    return await _in_thread(run, threads)


async def _awaited(run: Run) -> Any:
    with captured(run.job):
        return await run.handler.function(run.job)


async def _in_thread(run: Run, threads: ThreadPoolExecutor) -> Any:
    """Wait for a plain function. One that does not stop when told is left behind: a thread cannot be ended."""

    def work() -> Any:
        with captured(run.job):
            return run.handler.function(run.job)

    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(threads, context.run, work)


def _succeeded(run: Run, result: object) -> Ending:
    try:
        text = _encode(result)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return _broke(run, f"the result cannot be written as JSON: {error}", retry=False)
    if len(text) > PAYLOAD_BYTES_MAX:
        return _broke(run, f"the result has {len(text)} bytes; the most is {PAYLOAD_BYTES_MAX}", retry=False)
    return Succeeded(id=run.id, fence=run.fence, result=msgspec.Raw(text))


def _raised(run: Run, error: BaseException) -> Ending:
    run.job.log("".join(traceback.format_exception(error)), end="")
    return _broke(run, f"{type(error).__name__}: {error}")


def _broke(run: Run, error: str, *, retry: bool = True, exit_code: int | None = None) -> Ending:
    return Broke(id=run.id, fence=run.fence, error=error[-ERROR_CHARS_MAX:], retry=retry, exit_code=exit_code)
