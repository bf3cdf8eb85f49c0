"""The process of one measured run: reads an order, prints its figures as JSON."""

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
    """On uvloop, for every system that runs in Python: it is faster for each of them."""
    system = load(request.system)
    uvloop: Any = component("uvloop")
    found: RunResult = uvloop.run(measure(system, request))
    return found


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # Some peers log every job; nobody reads it here.
    print(msgspec.json.encode(run(msgspec.json.decode(sys.argv[1], type=RunRequest))).decode())
