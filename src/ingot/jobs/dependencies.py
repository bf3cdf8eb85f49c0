"""Orders that wait for other jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

import msgspec

from ingot.jobs.errors import DependencyCycle
from ingot.jobs.model import NewJob


def check_cycles(orders: Sequence[NewJob]) -> None:
    """Refuse orders of one call that wait for each other; what was enqueued before waits for none of them."""
    waits = {order.id: order.after for order in orders}
    inside = {job: [parent for parent in parents if parent in waits] for job, parents in waits.items()}
    try:
        tuple(TopologicalSorter(inside).static_order())
    except CycleError as error:
        raise DependencyCycle(f"the job {error.args[1][0]} would wait for itself") from None


def resolve_parents(orders: Sequence[NewJob], names: Mapping[str, str]) -> list[NewJob]:
    """The orders, waiting for the jobs that answer those they name. Raises `DependencyCycle`."""
    renamed = [
        msgspec.structs.replace(order, after=tuple(sorted({names.get(parent, parent) for parent in order.after})))
        if any(names.get(parent, parent) != parent for parent in order.after)
        else order
        for order in orders
    ]
    check_cycles(renamed)
    return renamed
