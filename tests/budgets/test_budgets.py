"""No operation that clients call often becomes more expensive unnoticed.

Costs are counted, so no slow or busy machine changes them. CONTRIBUTING says what to do when a budget is exceeded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.budgets.operations import Measured, measure
from tests.budgets.table import BUDGETS, deviations
from tests.factories import ENGINES

FUNCTIONS_SHOWN = 10


def explain(measured: dict[str, Measured], engine: str) -> Iterator[str]:
    """Every deviation, followed by the functions that the operation calls most."""
    for operation, cost in measured.items():
        if lines := list(deviations(f"{operation} on {engine}", cost.cost, BUDGETS[engine][operation])):
            yield from lines
            most = cost.functions.most_common(FUNCTIONS_SHOWN)
            yield "    most calls: " + ", ".join(f"{name} {count}" for name, count in most)


@pytest.mark.parametrize("engine", ENGINES)
def test_operations_cost_what_their_budgets_say(engine: str, tmp_path: Path) -> None:
    # A new event loop, so that nothing of earlier tests runs meanwhile.
    measured = asyncio.run(measure(engine, tmp_path / "data"))
    assert measured.keys() == BUDGETS[engine].keys()
    messages = list(explain(measured, engine))
    assert not messages, "\n" + "\n".join(messages)


@pytest.mark.parametrize(
    ("calls", "deviates"), [(890, True), (910, False), (1000, False), (1090, False), (1110, True), (2000, True)]
)
def test_a_cost_deviates_when_it_is_more_than_a_tenth_above_or_below_its_budget(calls: int, deviates: bool) -> None:
    messages = list(deviations("settle", {"calls": calls}, {"calls": 1000}))
    assert len(messages) == deviates


def test_a_deviation_names_the_operation_the_count_the_budget_and_what_to_do() -> None:
    (message,) = deviations("settle", {"calls": 1110, "statements": 1}, {"calls": 1000, "statements": 1})
    assert message.startswith("settle: 1110 calls, budget 1000 (+11%). Find what became more expensive.")
    assert "raise the budget in tests/budgets/table.py in the same commit" in message


def test_one_statement_more_deviates_from_a_budget_of_one() -> None:
    assert list(deviations("settle", {"statements": 2}, {"statements": 1}))
