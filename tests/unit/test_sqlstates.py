"""SQLSTATEs of the functions of PostgreSQL: each has one meaning, for our servers and for applications."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from ingot.engines.postgres.connection import ERRORS_BY_SQLSTATE

REFUSED = re.compile(r"refuse_app\('(IN\d+)', '(\w+)'")
DETAILS = {"IN009": "1.5", "IN049": "tenant 1 2 3", "IN071": "3"}


def told_to_applications() -> set[tuple[str, str]]:
    files = resources.files("ingot.engines.postgres.functions").iterdir()
    texts = [file.read_text(encoding="utf-8") for file in files if file.name.endswith(".sql")]
    return {found for text in texts for found in REFUSED.findall(text)}


def test_a_state_means_one_thing_to_applications() -> None:
    states = [state for state, _ in told_to_applications()]
    assert states
    assert sorted(states) == sorted(set(states))


@pytest.mark.parametrize(("state", "code"), sorted(told_to_applications()))
def test_a_state_means_the_same_to_servers_and_applications(state: str, code: str) -> None:
    if state in ERRORS_BY_SQLSTATE:
        assert ERRORS_BY_SQLSTATE[state]("it is refused", DETAILS.get(state, "")).code == code
