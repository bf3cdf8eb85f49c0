"""What many unit tests begin with."""

from __future__ import annotations

import pytest

from tests.unit.untouchable import Rooms


@pytest.fixture
def rooms() -> Rooms:
    """The rooms in front of a store that must not be called."""
    return Rooms()
