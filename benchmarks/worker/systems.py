"""The systems by name, and the rows of the tables. The module of a system is imported when it is loaded."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from benchmarks.worker.adapter import Row, System

MODULES: Final = {
    "ingot": "benchmarks.worker.ingot_http",
    "ingot-direct": "benchmarks.worker.ingot_direct",
    "celery": "benchmarks.worker.celery",
    "rq": "benchmarks.worker.rq",
    "dramatiq": "benchmarks.worker.dramatiq",
    "arq": "benchmarks.worker.arq",
    "procrastinate": "benchmarks.worker.procrastinate",
    "pgqueuer": "benchmarks.worker.pgqueuer",
}
ON_REDIS: Final = ("celery", "rq", "dramatiq", "arq")
ON_POSTGRES: Final = ("procrastinate", "pgqueuer")
SQLITE: Final = Row(system="ingot", store="sqlite", title="**Ingot**, HTTP, SQLite", durable="yes: FULL")
POSTGRES: Final = Row(system="ingot", store="postgres", title="**Ingot**, HTTP, PostgreSQL", durable="yes: fsync")
DIRECT: Final = Row(system="ingot-direct", store="direct", title="**Ingot**, PostgreSQL", durable="yes: fsync")
ROWS: Final = (
    SQLITE,
    POSTGRES,
    DIRECT,
    *(Row(system=name, store="database", title=f"{name}, PostgreSQL", durable="yes: fsync") for name in ON_POSTGRES),
    *(
        Row(system=name, store="redis-durable", title=f"{name}, Redis", durable="yes: appendfsync always", share=0.5)
        for name in ON_REDIS
    ),
    *(
        Row(system=name, store="redis", title=f"{name}, Redis", durable="no: snapshots", latency=False)
        for name in ON_REDIS
    ),
)


def load(name: str) -> System:
    """Return a system. Raises `MissingDependency` if it is not installed."""
    system: System = import_module(MODULES[name]).SYSTEM
    return system
