"""The process that installs a system in an empty database, from which each run copies its database."""

from __future__ import annotations

import logging
import sys

from benchmarks.postgres.systems import load

if __name__ == "__main__":
    logging.disable(logging.WARNING)
    _, name, url = sys.argv
    install = load(name).install
    assert install is not None
    install(url)
