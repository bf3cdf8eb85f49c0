"""The process of many workers that sleep, each a runner of its own: how many, and the jobs each has at once."""

from __future__ import annotations

import asyncio
import resource
import sys
from typing import Any

from benchmarks.queue.adapter import component
from benchmarks.worker.app import sleepers
from ingot.settings import read_client_settings
from ingot.wiring import worker_runner

FILES = 8192


async def run(runners: int, concurrency: int) -> None:
    """Until TERM, at which nobody is waited for."""
    stopping, settings = asyncio.Event(), read_client_settings()
    made = [worker_runner.build_runner(sleepers(concurrency), settings, drain_seconds=0) for _ in range(runners)]
    await asyncio.gather(*(one.run(stopping) for one in made))


if __name__ == "__main__":
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES if most < 0 else min(FILES, most), most))
    uvloop: Any = component("uvloop")
    uvloop.run(run(int(sys.argv[1]), int(sys.argv[2])))
