"""The systems by name. A system's module is imported only when it is wanted."""

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
    """Raises `Missing` when the system is not installed."""
    system: System = import_module(MODULES[name]).SYSTEM
    return system
