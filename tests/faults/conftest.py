"""Fixtures for tests of broken connections."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture
def leftovers() -> Iterator[None]:
    """Collect connections that were cut off while they opened, which the driver does not close, before the next test.

    Older objects are frozen meanwhile, because scanning all of them takes 60 ms.
    """
    gc.freeze()
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    gc.unfreeze()
