"""What tests of broken connections share."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture
def leftovers() -> Iterator[None]:
    """Connections cut off while they opened are the driver's to lose; they are collected before the next test.

    What was there before the test is set aside meanwhile, because looking through all of it takes 60 ms.
    """
    gc.freeze()
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    gc.unfreeze()
