"""Processes that are killed: forked from one that has loaded everything and has no thread."""

from __future__ import annotations

import multiprocessing

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["tests.faults.child", "tests.faults.object_child", "tests.faults.postgres_child", "tests.faults.blob_child"]
)
