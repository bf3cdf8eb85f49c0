"""The process of a worker in Python. The arguments are the name of a system and its address."""

from __future__ import annotations

import logging
import sys

import msgspec

from benchmarks.worker.adapter import SystemAddress
from benchmarks.worker.systems import load

if __name__ == "__main__":
    logging.disable(logging.WARNING)  # Some peers log every job.
    _, name, encoded_address = sys.argv
    work = load(name).work
    assert work is not None
    work(msgspec.json.decode(encoded_address, type=SystemAddress))
