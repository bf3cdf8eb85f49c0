"""Every planted bug is caught by the test that holds the promise it breaks, and nothing else is accused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import Mutant, plant
from tests.mutants.witness import COPY_VARIABLE

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
QUIET = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis", "-n", "0", "-p", "tests.mutants.witness"]


def run_tests(copy: Path, selection: list[str]) -> subprocess.CompletedProcess[str]:
    """Run tests against a copy of the package."""
    environment = {**os.environ, "PYTHONPATH": str(copy), COPY_VARIABLE: str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]
    command = [sys.executable, "-m", "pytest", *QUIET, f"--basetemp={copy / 'tmp'}", *selection]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_caught(tmp_path: Path, mutant: Mutant) -> None:
    run = run_tests(plant(tmp_path, mutant), [mutant.caught_by])
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, f"{mutant.name} was not caught:\n{run.stdout}{run.stderr}"


@pytest.mark.timeout(900)  # It runs what catches all of them.
def test_a_copy_without_a_bug_passes(tmp_path: Path) -> None:
    # The long ones among them run on the package itself anyway.
    selection = sorted({mutant.caught_by for mutant in MUTANTS})
    run = run_tests(plant(tmp_path), ["-m", "not long", *selection])
    assert run.returncode == pytest.ExitCode.OK, f"{run.stdout}{run.stderr}"


def test_a_run_that_does_not_test_the_copy_is_refused(tmp_path: Path) -> None:
    run = run_tests(tmp_path, [MUTANTS[0].caught_by])
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "ingot was imported from" in run.stderr
