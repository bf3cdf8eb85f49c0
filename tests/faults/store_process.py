"""A process that works on a store until it is killed."""

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
from tests.faults.recorded_calls import Held
from tests.faults.workload import Workload

DRAIN_SECONDS_MAX = 200.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What one process is to do. Without `seconds` it finishes all work and ends by itself."""

    folder: Path
    history: Path
    output: Path
    run: int
    seed: int
    lease_seconds: float
    checkpoint_pages: int
    seconds: float | None
    held: list[Held] = []
    point: str | None = None
    countdown: int = 1


def work(plan: Plan) -> None:
    """The life of the process. What it has to say goes to a file, so that a test can show it."""
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
    # Checkpoints come often, so that kills find them under way.
    WRITER_PRAGMAS["wal_autocheckpoint"] = plan.checkpoint_pages
    files = arm(plan.point, plan.countdown) if plan.point else None
    clock = SystemClock()
    vfs = None if files is None else files.vfs
    store = await SQLiteStore.open(plan.folder, clock=clock, lease_seconds=plan.lease_seconds, vfs=vfs)
    maintenance = JobMaintenance(store)
    maintenance.start()
    workload = Workload(store, clock, recorder, lease_seconds=plan.lease_seconds, seed=plan.seed, held=[*plan.held])
    await workload.prepare()
    if plan.seconds is None:
        recorder.note("drained", await workload.drain(DRAIN_SECONDS_MAX))
    else:
        await workload.run(plan.seconds)
    await maintenance.stop()
    await store.close()
