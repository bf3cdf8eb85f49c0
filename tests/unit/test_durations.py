"""Durations that the client and the command line accept."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ingot.client.job_request import to_seconds
from ingot.kernel.errors import InvalidInput


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [("5", 5), ("1.5", 1.5), ("500ms", 0.5), (" 2H ", 7200), (3, 3), (timedelta(minutes=1), 60)],
)
def test_a_duration_without_a_unit_is_in_seconds(duration: str | float | timedelta, seconds: float) -> None:
    assert to_seconds(duration) == seconds


@pytest.mark.parametrize("duration", ["", "ms", "5 m", "-5", "1e3", True])
def test_other_values_are_not_durations(duration: str | bool) -> None:
    with pytest.raises(InvalidInput):
        to_seconds(duration)
