"""What many unit tests begin with."""

from __future__ import annotations

import pytest

from tests.unit.forbidden_store import Rooms


@pytest.fixture
def rooms() -> Rooms:
    """The rooms in front of a store that must not be called."""
    return Rooms()
