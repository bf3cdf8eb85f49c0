"""A process that works on a SQLite store until it is killed."""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from pathlib import Path

import msgspec

from ingot.engines.sqlite import SQLiteStore
from ingot.engines.sqlite.connection import WRITER_PRAGMAS
from ingot.jobs.maintenance import JobMaintenance
from ingot.kernel.clock import SystemClock
from tests.faults.history import FileRecorder
from tests.faults.kill_points import arm
from tests.faults.recorded_calls import HeldAttempt
from tests.faults.workload import Workload

DRAIN_SECONDS_MAX = 200.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The task of one process. Without `seconds` it finishes all work and then exits."""

    folder: Path
    history: Path
    output: Path
    run: int
    seed: int
    lease_seconds: float
    checkpoint_pages: int
    seconds: float | None
    attempts: list[HeldAttempt] = []
    point: str | None = None
    countdown: int = 1


def work(plan: Plan) -> None:
    """Run the process. Its output goes to a file, so that a test can print it."""
    output = os.open(plan.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        asyncio.run(_work(plan))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


async def _work(plan: Plan) -> None:
    recorder = FileRecorder(str(plan.run), plan.history)
    # Checkpoints are frequent, so that some kills happen during one.
    WRITER_PRAGMAS["wal_autocheckpoint"] = plan.checkpoint_pages
    files = arm(plan.point, plan.countdown) if plan.point else None
    clock = SystemClock()
    vfs = None if files is None else files.vfs
    store = await SQLiteStore.open(plan.folder, clock=clock, lease_seconds=plan.lease_seconds, vfs=vfs)
    maintenance = JobMaintenance(store)
    maintenance.start()
    workload = Workload(
        store, clock, recorder, lease_seconds=plan.lease_seconds, seed=plan.seed, attempts=[*plan.attempts]
    )
    await workload.prepare()
    if plan.seconds is None:
        recorder.note("drained", await workload.drain(DRAIN_SECONDS_MAX))
    else:
        await workload.run(plan.seconds)
    await maintenance.stop()
    await store.close()
