"""The planted bugs fit the package of today, and one of each kind is caught; `make mutants` plants them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.catalogue import KINDS, MUTANTS
from tests.mutants.mutant import PACKAGE, Mutant, plant
from tests.mutants.runs import assert_caught, run_tests

pytestmark = pytest.mark.long


@pytest.mark.parametrize("mutant", [kind.MUTANTS[0] for kind in KINDS], ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_caught(tmp_path: Path, mutant: Mutant) -> None:
    assert_caught(tmp_path, mutant)


def test_every_planted_bug_has_its_place() -> None:
    found = {mutant.name: (PACKAGE / mutant.file).read_text(encoding="utf-8").count(mutant.old) for mutant in MUTANTS}
    assert {name for name, times in found.items() if times != 1} == set()
    assert len(found) == len(MUTANTS)


def test_every_planted_bug_has_a_test_that_exists(tmp_path: Path) -> None:
    selection = sorted({mutant.caught_by for mutant in MUTANTS})
    run = run_tests(plant(tmp_path), ["--collect-only", *selection])
    assert run.returncode == pytest.ExitCode.OK, f"{run.stdout[-2_000:]}{run.stderr}"


def test_a_run_that_does_not_test_the_copy_is_refused(tmp_path: Path) -> None:
    run = run_tests(tmp_path, [MUTANTS[0].caught_by])
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "ingot was imported from" in run.stderr
