"""The synchronous client is generated from the asynchronous one, and a checkout without it says so."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ingot
from scripts.make_sync import SYNCHRONOUS, generated_files
from tests.waiting import SECONDS_MAX

PACKAGE = Path(ingot.__file__).parent


def test_the_synchronous_client_is_up_to_date() -> None:
    files = {path: path.read_text(encoding="utf-8") for path in SYNCHRONOUS.glob("*.py")}
    assert files == generated_files(), "src/ingot/client/synchronous is outdated: run `make client`"


@pytest.mark.parametrize("leftover", [False, True], ids=["no folder", "compiled files only"])
def test_a_checkout_without_the_synchronous_client_says_how_to_generate_it(tmp_path: Path, leftover: bool) -> None:
    for name in ("__init__.py", "client/__init__.py", "kernel/__init__.py", "kernel/lazy_imports.py"):
        (tmp_path / "ingot" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PACKAGE / name, tmp_path / "ingot" / name)
    if leftover:
        (tmp_path / "ingot" / "client" / "synchronous" / "__pycache__").mkdir(parents=True)
    run = subprocess.run(
        [sys.executable, "-c", "import ingot; ingot.Client"],
        env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    assert run.returncode == 1
    assert run.stderr.endswith(
        "ImportError: ingot.client.synchronous has not been generated. Run `make client` in the checkout of Ingot.\n"
    )
