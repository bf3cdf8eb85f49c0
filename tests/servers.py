"""Get the servers that the tests start, before they run: installing one takes longer than a test may."""

from __future__ import annotations

import sys

from tests.faults.bouncer import program
from tests.postgres import binaries

if __name__ == "__main__":
    for get in (binaries, program):
        try:
            get()
        except AssertionError as missing:  # The tests that need it fail and say so; the others can run.
            print(missing, file=sys.stderr)
