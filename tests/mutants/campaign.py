"""`make mutants`: each planted bug is caught by the test of the promise that it breaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import Mutant, plant
from tests.mutants.runs import assert_caught, run_tests

pytestmark = pytest.mark.long


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_caught(tmp_path: Path, mutant: Mutant) -> None:
    assert_caught(tmp_path, mutant)


@pytest.mark.timeout(900)  # It runs all tests that catch planted bugs.
def test_a_copy_without_a_bug_passes(tmp_path: Path) -> None:
    # Long tests run on the package itself anyway.
    selection = sorted({mutant.caught_by for mutant in MUTANTS})
    run = run_tests(plant(tmp_path), ["-m", "not long", *selection])
    assert run.returncode == pytest.ExitCode.OK, f"{run.stdout}{run.stderr}"


def test_every_planted_bug_has_a_test_that_is_collected(tmp_path: Path) -> None:
    selection = sorted({mutant.caught_by for mutant in MUTANTS})
    run = run_tests(plant(tmp_path), ["--collect-only", *selection])
    assert run.returncode == pytest.ExitCode.OK, f"{run.stdout[-2_000:]}{run.stderr}"


def test_a_run_that_does_not_test_the_copy_is_refused(tmp_path: Path) -> None:
    run = run_tests(tmp_path, [MUTANTS[0].caught_by])
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "ingot was imported from" in run.stderr
