"""Where a test run keeps its files: in memory if there is enough, because nothing there has to survive the machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

MEMORY_FOLDER: Final = Path("/dev/shm")
MEMORY_BYTES_MIN: Final = 6 * 1024**3


@contextmanager
def scratch_folder(config: pytest.Config) -> Iterator[None]:
    """Give pytest and `tempfile` a folder for this run, and remove it at the end. Subprocesses inherit it."""
    on_disk = config.option.basetemp or os.environ.get("TMPDIR")
    if on_disk or not MEMORY_FOLDER.is_dir() or shutil.disk_usage(MEMORY_FOLDER).free < MEMORY_BYTES_MIN:
        yield
        return
    folder = Path(tempfile.mkdtemp(prefix="ingot-tests-", dir=MEMORY_FOLDER))
    folder.chmod(0o1777)  # Isolated handlers run as another user.
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    config.option.basetemp = folder / "pytest"
    try:
        yield
    finally:
        del os.environ["TMPDIR"]
        tempfile.tempdir = None
        shutil.rmtree(folder, ignore_errors=True)
