"""The order of tests in a run: long and slow ones first in the share of each xdist worker.

xdist deals the list out in contiguous shares and lets idle workers steal from the ends of others. A share that ends
with quick tests leaves no worker alone with a long one. Tests of a module stay together: they share fixtures.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import groupby

import pytest

from tests.components import is_slow_folder


def in_shares(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Order tests for as many workers as there are. The order is the same in each of them."""
    shares: list[list[pytest.Item]] = [[] for _ in range(int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))]
    for is_of_kind in (_is_long, _is_slow, _is_quick):
        for module in _modules([item for item in items if is_of_kind(item)]):
            min(shares, key=len).extend(module)
    return [item for share in shares for item in share]


def _modules(items: Sequence[pytest.Item]) -> list[list[pytest.Item]]:
    """The tests of each module, the largest modules first."""
    return sorted((list(group) for _, group in groupby(items, key=_module_of)), key=len, reverse=True)


def _module_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("long") is not None


def _is_slow(item: pytest.Item) -> bool:
    return not _is_long(item) and is_slow_folder(item.path.parent)


def _is_quick(item: pytest.Item) -> bool:
    return not _is_long(item) and not _is_slow(item)
