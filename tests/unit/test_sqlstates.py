"""SQLSTATEs of the SQL functions of PostgreSQL: each has one meaning for servers and applications."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from ingot.engines.postgres.connection import ERRORS_BY_SQLSTATE

REFUSED = re.compile(r"refuse_app\('(IN\d+)', '(\w+)'")
DETAILS = {"IN009": "1.5", "IN049": "tenant 1 2 3", "IN071": "3"}


def states_of_applications() -> set[tuple[str, str]]:
    files = resources.files("ingot.engines.postgres.functions").iterdir()
    texts = [file.read_text(encoding="utf-8") for file in files if file.name.endswith(".sql")]
    return {match for text in texts for match in REFUSED.findall(text)}


def test_every_sqlstate_has_one_meaning_for_applications() -> None:
    states = [state for state, _ in states_of_applications()]
    assert states
    assert sorted(states) == sorted(set(states))


@pytest.mark.parametrize(("state", "code"), sorted(states_of_applications()))
def test_a_sqlstate_has_the_same_meaning_for_servers_and_applications(state: str, code: str) -> None:
    if state in ERRORS_BY_SQLSTATE:
        assert ERRORS_BY_SQLSTATE[state]("rejected", DETAILS.get(state, "")).code == code
