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
from tests.faults.postgres_cluster import DRAIN_SECONDS_MAX, PostgresWorkload
from tests.faults.recorded_calls import HeldAttempt


class PostgresPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The task of one process. It works until it is killed; the last one works until all jobs are finished."""

    url: str
    history: Path
    output: Path
    run: int
    seed: int
    lease_seconds: float
    last: bool = False
    attempts: list[HeldAttempt] = []


def work(plan: PostgresPlan) -> None:
    """Run the process. Its output goes to a file, so that a test can print it."""
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
    workload = PostgresWorkload(
        store, recorder, seed=plan.seed, lease_seconds=plan.lease_seconds, attempts=[*plan.attempts]
    )
    await workload.prepare()
    if plan.last:
        recorder.note("drained", await workload.drain(DRAIN_SECONDS_MAX))
    else:
        await workload.work_until(asyncio.Event())
    await maintenance.stop()
    await store.close()
