"""The texts of credentials: recognized by their form and sum, before anything is looked up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.identity import secrets
from ingot.kernel.ids import new_id


def test_a_token_carries_its_id() -> None:
    token_id = new_id()
    token = secrets.new_token(token_id)
    assert token.startswith("ingot_")
    assert secrets.id_of_token(token) == token_id
    assert secrets.new_token(token_id) != token


def test_what_is_stored_proves_one_text_only() -> None:
    first, second = secrets.new_secret(secrets.WORKER_PREFIX), secrets.new_secret(secrets.WORKER_PREFIX)
    assert secrets.matches(first, secrets.digest(first))
    assert not secrets.matches(second, secrets.digest(first))
    assert secrets.is_well_formed(first, secrets.WORKER_PREFIX)
    assert not secrets.is_well_formed(secrets.new_token(new_id()), secrets.WORKER_PREFIX)
    assert secrets.id_of_token(first) is None


@given(st.integers(0, 76), st.sampled_from(secrets.LETTERS))
def test_one_letter_changed_is_no_token(place: int, letter: str) -> None:
    token = secrets.new_token("0190a000-0000-7000-8000-000000000001")
    changed = token[:place] + letter + token[place + 1 :]
    assert (secrets.id_of_token(changed) is not None) == (changed == token)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda token: token[:-1],
        lambda token: token + "0",
        lambda token: token.swapcase(),
        lambda token: " " + token,
        lambda token: token.replace("ingot_", "ingotw_"),
        lambda token: token[:-1] + "é",
        lambda _: "",
        lambda _: "ingot_",
        lambda _: "ingot_" + "z" * 71,
    ],
)
def test_what_nobody_made_has_no_id(spoil) -> None:  # type: ignore[no-untyped-def]
    assert secrets.id_of_token(spoil(secrets.new_token(new_id()))) is None
