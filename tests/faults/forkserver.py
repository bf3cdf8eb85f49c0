"""The context that forks processes which tests kill, from a server that has imported everything and has no threads."""

from __future__ import annotations

import multiprocessing

FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(
    [
        "tests.faults.store_process",
        "tests.faults.object_process",
        "tests.faults.postgres_process",
        "tests.faults.blob_server_process",
    ]
)
