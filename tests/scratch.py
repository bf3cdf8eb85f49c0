"""The folder for files of a test run: in memory if there is enough, because no file has to survive a power loss."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Final

import pytest

MEMORY_FOLDER: Final = Path("/dev/shm")
MEMORY_BYTES_MIN: Final = 6 * 1024**3
CONTAINER_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")
LAST: Final = -1_000  # After multiprocessing has removed its own folder there.


def use_scratch_folder(config: pytest.Config) -> None:
    """Give pytest and `tempfile` a folder for this run, removed when the process ends. Subprocesses inherit it."""
    if config.option.basetemp or os.environ.get("TMPDIR") or _free_memory() < MEMORY_BYTES_MIN:
        return
    folder = Path(tempfile.mkdtemp(prefix="ingot-tests-", dir=MEMORY_FOLDER))
    Finalize(None, shutil.rmtree, (folder, True), exitpriority=LAST)
    folder.chmod(0o1777)  # Isolated handlers run as another user.
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    config.option.basetemp = folder / "pytest"


def _free_memory() -> int:
    """Return how many bytes files in memory may use: the least of free space, free memory and the container's limit."""
    if not MEMORY_FOLDER.is_dir():
        return 0
    available = re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    free = [shutil.disk_usage(MEMORY_FOLDER).free, 1024 * int(available[1]) if available else 0]
    if CONTAINER_LIMIT.exists() and (limit := CONTAINER_LIMIT.read_text().strip()) != "max":
        free.append(int(limit))
    return min(free)
