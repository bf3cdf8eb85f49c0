"""Processes that are killed: forked from one that has loaded everything and has no thread."""

from __future__ import annotations

import multiprocessing

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        "tests.faults.store_process",
        "tests.faults.object_process",
        "tests.faults.postgres_process",
        "tests.faults.blob_server_process",
    ]
)
