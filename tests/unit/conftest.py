"""Fixtures of several unit tests."""

from __future__ import annotations

import pytest

from tests.unit.forbidden_store import Services


@pytest.fixture
def services() -> Services:
    """Services on a store that must not be called."""
    return Services()
