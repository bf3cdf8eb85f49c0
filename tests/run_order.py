"""The order of tests in a run: long and slow ones first in the share of each xdist worker.

xdist splits the list into contiguous shares, and idle workers take tests from the ends of other shares. If each share
ends with quick tests, no worker is left with a long one. Tests of a module stay together, because they share fixtures.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import groupby

import pytest

from tests.components import is_slow_folder


def order_in_shares(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Order tests for the number of workers. The order is the same in every worker."""
    shares: list[list[pytest.Item]] = [[] for _ in range(int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))]
    for matches in (_is_long, _is_slow, _is_quick):
        for module in _modules([item for item in items if matches(item)]):
            min(shares, key=len).extend(module)
    return [item for share in shares for item in share]


def _modules(items: Sequence[pytest.Item]) -> list[list[pytest.Item]]:
    """Return the tests of each module, the largest modules first."""
    return sorted((list(group) for _, group in groupby(items, key=_module_of)), key=len, reverse=True)


def _module_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("long") is not None


def _is_slow(item: pytest.Item) -> bool:
    return not _is_long(item) and is_slow_folder(item.path.parent)


def _is_quick(item: pytest.Item) -> bool:
    return not _is_long(item) and not _is_slow(item)
