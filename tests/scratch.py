"""Where a test run keeps its files: in memory if there is enough, because nothing there has to survive the machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Final

import pytest

MEMORY_FOLDER: Final = Path("/dev/shm")
MEMORY_BYTES_MIN: Final = 6 * 1024**3
LAST: Final = -1_000  # After multiprocessing has removed its own folder there.


def use_scratch_folder(config: pytest.Config) -> None:
    """Give pytest and `tempfile` a folder for this run, removed when the process ends. Subprocesses inherit it."""
    is_chosen = config.option.basetemp or os.environ.get("TMPDIR")
    if is_chosen or not MEMORY_FOLDER.is_dir() or shutil.disk_usage(MEMORY_FOLDER).free < MEMORY_BYTES_MIN:
        return
    folder = Path(tempfile.mkdtemp(prefix="ingot-tests-", dir=MEMORY_FOLDER))
    Finalize(None, shutil.rmtree, (folder, True), exitpriority=LAST)
    folder.chmod(0o1777)  # Isolated handlers run as another user.
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    config.option.basetemp = folder / "pytest"
