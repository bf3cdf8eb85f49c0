"""What tests of broken connections share."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture
def leftovers() -> Iterator[None]:
    """Connections cut off while they opened are the driver's to lose; they are collected before the next test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
