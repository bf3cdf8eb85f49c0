"""The planted bugs apply to the current source, and one of each kind is caught. `make mutants` plants all of them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.mutants import plugin
from tests.mutants.catalogue import KINDS, MUTANTS
from tests.mutants.mutant import PACKAGE, Mutant
from tests.mutants.plugin import COPY_VARIABLE
from tests.mutants.runs import ROOT, assert_caught

pytestmark = pytest.mark.long


@pytest.mark.parametrize("mutant", [kind.MUTANTS[0] for kind in KINDS], ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_caught(tmp_path: Path, mutant: Mutant) -> None:
    assert_caught(tmp_path, mutant)


def test_every_planted_bug_has_its_place() -> None:
    occurrences = {
        mutant.name: (PACKAGE / mutant.file).read_text(encoding="utf-8").count(mutant.old) for mutant in MUTANTS
    }
    assert {name for name, count in occurrences.items() if count != 1} == set()
    assert len(occurrences) == len(MUTANTS)


def test_every_planted_bug_has_a_test_that_exists() -> None:
    # The campaign collects them too, with their parameters; that takes as long as collecting all tests.
    missing = sorted({mutant.caught_by for mutant in MUTANTS if not exists(mutant.caught_by)})
    assert missing == []


def exists(selection: str) -> bool:
    """Whether the file exists and contains a function of that name."""
    file, _, function = selection.partition("::")
    names = functions_in(ROOT / file)
    return function.partition("[")[0] in names if function else bool(names)


@cache
def functions_in(file: Path) -> set[str]:
    """Return the names of the functions in a file, or nothing if it does not exist."""
    body = ast.parse(file.read_text(encoding="utf-8")).body if file.is_file() else []
    return {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize(
    "selection",
    [
        "tests/unit/nowhere.py",
        "tests/unit/test_signing.py::test_nothing",
        "tests/unit/test_signing.py::test_nothing[a]",
    ],
)
def test_a_selection_without_a_test_is_reported(selection: str) -> None:
    assert not exists(selection)


def test_a_run_that_does_not_test_the_copy_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COPY_VARIABLE, str(tmp_path))
    with pytest.raises(pytest.UsageError, match="ingot was imported from"):
        plugin.pytest_configure()
