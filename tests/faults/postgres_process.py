"""A process that works on a PostgreSQL store until it is killed."""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from pathlib import Path

import msgspec

from ingot.engines.postgres import PostgresStore
from ingot.jobs.maintenance import JobMaintenance
from ingot.kernel.clock import SystemClock
from ingot.kernel.logs import configure_logs
from tests.faults.history import FileRecorder
from tests.faults.postgres_environment import DRAIN_SECONDS_MAX, Shift
from tests.faults.recorded_calls import Held


class PostgresPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one process is to do. It works until it is killed, or, when it is the last, until all work is finished."""

    url: str
    history: Path
    output: Path
    run: int
    seed: int
    lease_seconds: float
    last: bool = False
    held: list[Held] = []


def work(plan: PostgresPlan) -> None:
    """The life of the process. What it has to say goes to a file, so that a test can show it."""
    output = os.open(plan.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    configure_logs()
    try:
        asyncio.run(_work(plan))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


async def _work(plan: PostgresPlan) -> None:
    recorder = FileRecorder(str(plan.run), plan.history)
    store = await PostgresStore.open(plan.url, clock=SystemClock(), lease_seconds=plan.lease_seconds)
    maintenance = JobMaintenance(store)
    maintenance.start()
    shift = Shift(store, recorder, seed=plan.seed, lease_seconds=plan.lease_seconds, held=[*plan.held])
    await shift.prepare()
    if plan.last:
        recorder.note("drained", await shift.drain(DRAIN_SECONDS_MAX))
    else:
        await shift.work_until(asyncio.Event())
    await maintenance.stop()
    await store.close()
