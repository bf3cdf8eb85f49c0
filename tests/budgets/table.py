"""The budget of each operation on each engine, and the comparison of costs with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

TOLERANCE: Final = 0.1
# calls: of Python functions of the package. Measured with Python 3.11 and 3.13, which differ by 2 % at most.
# statements: those sent to the database. steps: of SQLite's virtual machine.
# buffers: pages that PostgreSQL touches. Measured with PostgreSQL 15 and 16, which differ by 4 % at most.
BUDGETS: Final[dict[str, dict[str, dict[str, int]]]] = {
    "sqlite": {
        "POST /jobs": {"calls": 186, "statements": 7, "steps": 388},
        "claim one": {"calls": 231, "statements": 9, "steps": 826},
        "claim 100": {"calls": 1814, "statements": 9, "steps": 44_699},
        "heartbeat": {"calls": 182, "statements": 6, "steps": 412},
        "settle": {"calls": 185, "statements": 11, "steps": 731},
        "PUT key": {"calls": 228, "statements": 15, "steps": 477},
    },
    "postgres": {
        "POST /jobs": {"calls": 200, "statements": 1, "buffers": 27},
        "claim one": {"calls": 248, "statements": 1, "buffers": 34},
        "claim 100": {"calls": 1040, "statements": 1, "buffers": 1128},
        "heartbeat": {"calls": 194, "statements": 1, "buffers": 18},
        "settle": {"calls": 181, "statements": 1, "buffers": 25},
        "PUT key": {"calls": 196, "statements": 1, "buffers": 61},
    },
}
RAISE: Final = (
    "Find what became more expensive. If it has to be, raise the budget in tests/budgets/table.py in the same commit, "
    "and give the reason in its message."
)
LOWER: Final = "It became cheaper: lower the budget in tests/budgets/table.py in the same commit."


def deviations(operation: str, cost: Mapping[str, float], budget: Mapping[str, int]) -> Iterator[str]:
    """A sentence for each count that is more than 10 % above its budget, or below it."""
    assert cost.keys() == budget.keys(), f"{operation}: counted {sorted(cost)}, and the budget has {sorted(budget)}."
    for name, allowed in budget.items():
        change = cost[name] / allowed - 1
        compared = f"{operation}: {cost[name]:g} {name}, budget {allowed} ({change:+.0%})."
        if change > TOLERANCE:
            yield f"{compared} {RAISE}"
        elif change < -TOLERANCE:
            yield f"{compared} {LOWER}"
