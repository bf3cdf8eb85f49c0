"""The systems by name. The module of a system is imported when it is loaded."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from benchmarks.postgres.adapter import System

MODULES: Final = {
    "ingot": "benchmarks.postgres.ingot_system",
    "floor": "benchmarks.postgres.floor",
    "bare": "benchmarks.postgres.bare_sql",
    "graphile": "benchmarks.postgres.graphile_worker",
    "pgqueuer": "benchmarks.postgres.pgqueuer",
    "awa": "benchmarks.postgres.awa",
    "chancy": "benchmarks.postgres.chancy",
    "procrastinate": "benchmarks.postgres.procrastinate",
}
NAMES: Final = tuple(MODULES)


def load(name: str) -> System:
    """Return a system. Raises `MissingDependency` if it is not installed."""
    system: System = import_module(MODULES[name]).SYSTEM
    return system
