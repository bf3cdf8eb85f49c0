"""Secrets of credentials: their format and checksum are verified before any query."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.identity import credential_secrets
from ingot.kernel.ids import new_id


def test_a_token_contains_its_id() -> None:
    token_id = new_id()
    token = credential_secrets.new_token(token_id)
    assert token.startswith("ingot_")
    assert credential_secrets.parse_token_id(token) == token_id
    assert credential_secrets.new_token(token_id) != token


def test_a_digest_matches_only_its_own_secret() -> None:
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
def test_a_token_with_one_changed_character_is_invalid(position: int, character: str) -> None:
    token = credential_secrets.new_token("0190a000-0000-7000-8000-000000000001")
    changed = token[:position] + character + token[position + 1 :]
    assert (credential_secrets.parse_token_id(changed) is not None) == (changed == token)


@pytest.mark.parametrize(
    "alter",
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
def test_an_altered_token_has_no_id(alter) -> None:  # type: ignore[no-untyped-def]
    assert credential_secrets.parse_token_id(alter(credential_secrets.new_token(new_id()))) is None
