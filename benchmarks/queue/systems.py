"""The systems by name. The module of a system is imported when it is loaded."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from benchmarks.queue.adapter import System

MODULES: Final = {
    "ingot": "benchmarks.queue.ingot_system",
    "floor": "benchmarks.queue.floor",
    "honker": "benchmarks.queue.honker",
    "huey": "benchmarks.queue.huey",
    "litequeue": "benchmarks.queue.litequeue",
}
NAMES: Final = tuple(MODULES)


def load(name: str) -> System:
    """Return a system. Raises `MissingDependency` if it is not installed."""
    system: System = import_module(MODULES[name]).SYSTEM
    return system
