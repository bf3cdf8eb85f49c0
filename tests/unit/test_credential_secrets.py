"""The texts of credentials: recognized by their form and sum, before anything is looked up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.identity import credential_secrets
from ingot.kernel.ids import new_id


def test_a_token_carries_its_id() -> None:
    token_id = new_id()
    token = credential_secrets.new_token(token_id)
    assert token.startswith("ingot_")
    assert credential_secrets.parse_token_id(token) == token_id
    assert credential_secrets.new_token(token_id) != token


def test_what_is_stored_proves_one_text_only() -> None:
    first, second = (
        credential_secrets.new_secret(credential_secrets.WORKER_PREFIX),
        credential_secrets.new_secret(credential_secrets.WORKER_PREFIX),
    )
    assert credential_secrets.matches(first, credential_secrets.digest(first))
    assert not credential_secrets.matches(second, credential_secrets.digest(first))
    assert credential_secrets.is_well_formed(first, credential_secrets.WORKER_PREFIX)
    assert not credential_secrets.is_well_formed(
        credential_secrets.new_token(new_id()), credential_secrets.WORKER_PREFIX
    )
    assert credential_secrets.parse_token_id(first) is None


@given(st.integers(0, 76), st.sampled_from(credential_secrets.BASE62_ALPHABET))
def test_one_letter_changed_is_no_token(place: int, letter: str) -> None:
    token = credential_secrets.new_token("0190a000-0000-7000-8000-000000000001")
    changed = token[:place] + letter + token[place + 1 :]
    assert (credential_secrets.parse_token_id(changed) is not None) == (changed == token)


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
    assert credential_secrets.parse_token_id(spoil(credential_secrets.new_token(new_id()))) is None
