"""The process of a worker that is started from Python: the name of a system, and its place."""

from __future__ import annotations

import logging
import sys

import msgspec

from benchmarks.worker.adapter import SystemAddress
from benchmarks.worker.systems import load

if __name__ == "__main__":
    logging.disable(logging.WARNING)  # Some peers log every job; nobody reads it here.
    _, name, text = sys.argv
    work = load(name).work
    assert work is not None
    work(msgspec.json.decode(text, type=SystemAddress))
