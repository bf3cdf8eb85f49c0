"""A process with many idle or sleeping workers. The arguments are their number, and the concurrency of each."""

from __future__ import annotations

import asyncio
import resource
import sys
from typing import Any

from benchmarks.queue.adapter import component
from benchmarks.worker.app import sleeping_worker
from ingot.settings import read_client_settings
from ingot.wiring import worker_runner

FILES = 8192


async def run(runners: int, concurrency: int) -> None:
    """Run the workers until the process is killed."""
    stopping, settings = asyncio.Event(), read_client_settings()
    started = [
        worker_runner.build_runner(sleeping_worker(concurrency), settings, drain_seconds=0) for _ in range(runners)
    ]
    await asyncio.gather(*(runner.run(stopping) for runner in started))


if __name__ == "__main__":
    hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    soft_limit = FILES if hard_limit < 0 else min(FILES, hard_limit)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft_limit, hard_limit))
    uvloop: Any = component("uvloop")
    uvloop.run(run(int(sys.argv[1]), int(sys.argv[2])))
