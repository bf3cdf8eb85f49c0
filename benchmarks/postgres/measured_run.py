"""The process of one measured run. The argument is its request; it prints the result as JSON."""

from __future__ import annotations

import logging
import sys
from typing import Any

import msgspec

from benchmarks.postgres.adapter import RunRequest, RunResult
from benchmarks.postgres.measure import measure
from benchmarks.postgres.systems import load
from benchmarks.queue.adapter import component


def run(request: RunRequest) -> RunResult:
    """Run a request on uvloop, which is faster for every system that runs in Python."""
    system = load(request.system)
    uvloop: Any = component("uvloop")
    result: RunResult = uvloop.run(measure(system, request))
    return result


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # Some peers log every job.
    print(msgspec.json.encode(run(msgspec.json.decode(sys.argv[1], type=RunRequest))).decode())
