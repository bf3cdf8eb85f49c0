"""Runs of tests against a copy of the package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaigns import WHOLE_VARIABLE
from tests.mutants.mutant import Mutant, plant
from tests.mutants.plugin import COPY_VARIABLE
from tests.mutants.selections import MACHINES

ROOT = Path(__file__).parents[2]
QUIET = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis", "-n", "0", "-p", "tests.mutants.plugin"]


def run_tests(copy: Path, selection: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Run tests against a copy of the package, with these environment variables."""
    environment = {**os.environ, "PYTHONPATH": str(copy), COPY_VARIABLE: str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]
    environment |= variables
    command = [sys.executable, "-m", "pytest", *QUIET, f"--basetemp={copy / 'tmp'}", *selection]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def assert_caught(folder: Path, mutant: Mutant) -> None:
    """Plant a bug in a copy, and check that its test fails."""
    # A sample of random lives can miss a bug.
    variables = {WHOLE_VARIABLE: "1"} if mutant.caught_by.startswith(MACHINES) else {}
    run = run_tests(plant(folder, mutant), [mutant.caught_by], **variables)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, f"{mutant.name} was not caught:\n{run.stdout}{run.stderr}"
