"""Ingot's worker directly on PostgreSQL. Jobs are submitted to the server over HTTP."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from benchmarks.queue.adapter import MissingDependency
from benchmarks.worker import ingot_http
from benchmarks.worker.adapter import System, SystemAddress
from benchmarks.worker.app import CONCURRENCY
from ingot.settings import ClientSettings

VARIABLE = "INGOT_DATABASE_URL"

if "database_url" not in ClientSettings.__struct_fields__:
    raise MissingDependency("this release has no worker on PostgreSQL")


def command(address: SystemAddress) -> tuple[list[str], Mapping[str, str]]:
    return ingot_http.WORKER, {VARIABLE: address.worker_url}


SYSTEM: System = msgspec.structs.replace(
    ingot_http.SYSTEM,
    name="ingot-direct",
    jobs=60_000,
    how=f"ingot worker on {VARIABLE}, an async handler with concurrency {CONCURRENCY}; submit_many of 100, 4 callers",
    command=command,
)
