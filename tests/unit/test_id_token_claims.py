"""Claims: what a token has to say before anybody is let in, and what is taken from it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.identity.id_token_claims import (
    LEEWAY_SECONDS,
    IdTokenRules,
    check_id_token,
    merge_userinfo,
    needs_userinfo,
    person_from_claims,
)
from ingot.identity.people import Person, SignInRefused
from ingot.kernel.clock import MICROS

NOW = 1_800_000_000
ISSUER = "https://login.example.com"
RULES = IdTokenRules(issuer=ISSUER, client_id="ingot")
TOKEN: dict[str, Any] = {"iss": ISSUER, "aud": "ingot", "sub": "1", "exp": NOW + 300, "iat": NOW, "nonce": "n"}
ADA: dict[str, Any] = {
    "sub": "1",
    "email": "Ada@Example.com",
    "email_verified": True,
    "name": "Ada",
    "picture": "https://example.com/ada.png",
    "groups": ["staff", "ops", "staff"],
}
STAFF = IdTokenRules(
    issuer=ISSUER, client_id="ingot", allowed_groups=frozenset({"staff"}), admin_groups=frozenset({"ops"})
)


def check(**changed: Any) -> None:
    claims = {name: value for name, value in {**TOKEN, **changed}.items() if value is not None}
    check_id_token(claims, RULES, nonce="n", now=NOW * MICROS)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"aud": ["ingot"]},
        {"aud": ["ingot", "other"], "azp": "ingot"},
        {"azp": "ingot"},
        {"exp": NOW - LEEWAY_SECONDS + 1},
        {"iat": NOW + LEEWAY_SECONDS},
        {"nbf": NOW + LEEWAY_SECONDS},
        {"exp": NOW + 0.5, "iat": NOW - 0.5},
    ],
)
def test_a_token_for_us_and_for_now_is_taken(changed: dict[str, Any]) -> None:
    check(**changed)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"iss": None}, "iss"),
        ({"iss": ISSUER + "/"}, "iss"),
        ({"iss": [ISSUER]}, "iss"),
        ({"aud": None}, "aud"),
        ({"aud": "other"}, "aud"),
        ({"aud": "ingot2"}, "aud"),
        ({"aud": []}, "aud"),
        ({"aud": {"ingot": 1}}, "aud"),
        ({"aud": ["ingot", "other"]}, "azp"),
        ({"aud": ["ingot", "other"], "azp": "other"}, "azp"),
        ({"azp": "other"}, "azp"),
        ({"azp": ["ingot"]}, "azp"),
        ({"exp": None}, "exp"),
        ({"exp": str(NOW + 300)}, "exp"),
        ({"exp": True}, "exp"),
        ({"exp": float("nan")}, "exp"),
        ({"exp": float("inf")}, "exp"),
        ({"exp": NOW - LEEWAY_SECONDS}, "expired"),
        ({"iat": None}, "iat"),
        ({"iat": NOW + LEEWAY_SECONDS + 1}, "iat"),
        ({"nbf": NOW + LEEWAY_SECONDS + 1}, "nbf"),
        ({"nbf": "now"}, "nbf"),
        ({"nonce": None}, "nonce"),
        ({"nonce": ""}, "nonce"),
        ({"nonce": "m"}, "nonce"),
        ({"nonce": ["n"]}, "nonce"),
        ({"nonce": "\ud800"}, "nonce"),
    ],
)
def test_any_other_token_is_refused_by_what_is_wrong(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(SignInRefused, match=said):
        check(**changed)


def test_the_claims_make_the_person() -> None:
    assert person_from_claims(ADA, RULES) == Person(
        issuer=ISSUER,
        subject="1",
        email="ada@example.com",
        email_verified=True,
        name="Ada",
        picture="https://example.com/ada.png",
        groups=("ops", "staff"),
    )


def test_a_subject_is_enough() -> None:
    assert person_from_claims({"sub": "1"}, RULES) == Person(issuer=ISSUER, subject="1")


@pytest.mark.parametrize("subject", [None, "", 1, "x" * 256, "a\x00b", "\ud800", ["1"]])
def test_a_subject_that_tells_nobody_apart_is_refused(subject: object) -> None:
    with pytest.raises(SignInRefused, match="sub"):
        person_from_claims({**ADA, "sub": subject}, RULES)


@pytest.mark.parametrize(("said", "verified"), [(True, True), ("true", True), (None, False)])
def test_an_email_is_verified_only_when_the_provider_says_so(said: object, verified: bool) -> None:
    person = person_from_claims({**ADA, "email_verified": said}, RULES)
    assert (person.email, person.email_verified) == ("ada@example.com", verified)


@pytest.mark.parametrize("said", [False, "false", "", 0, 1, "yes", []])
def test_an_email_that_is_not_verified_is_refused(said: object) -> None:
    with pytest.raises(SignInRefused, match="verified"):
        person_from_claims({**ADA, "email_verified": said}, RULES)


def test_without_an_email_nothing_is_verified() -> None:
    person = person_from_claims({"sub": "1", "email": "", "email_verified": True}, RULES)
    assert (person.email, person.email_verified) == (None, False)


def test_an_email_of_letters_that_are_not_made_small_alike_stays_as_it_is() -> None:
    assert person_from_claims({"sub": "1", "email": "\u212aim@example.com"}, RULES).email == "\u212aim@example.com"


@pytest.mark.parametrize("email", [5, "x" * 321, "a\x00@b", ["ada@example.com"]])
def test_an_email_that_is_none_is_refused(email: object) -> None:
    with pytest.raises(SignInRefused, match="email"):
        person_from_claims({**ADA, "email": email}, RULES)


@pytest.mark.parametrize("picture", ["http://x/y.png", "javascript:alert(1)", "data:x", 5, "https://" + "x" * 2048])
def test_a_picture_that_a_page_cannot_show_safely_is_left_out(picture: object) -> None:
    assert person_from_claims({**ADA, "picture": picture}, RULES).picture is None


@pytest.mark.parametrize("name", [5, "", "x" * 257, "a\x00b"])
def test_a_name_that_cannot_be_kept_is_left_out(name: object) -> None:
    assert person_from_claims({**ADA, "name": name}, RULES).name is None


@pytest.mark.parametrize("groups", [["staff"], ["ops"], ["visitors", "staff"]])
def test_people_in_an_allowed_group_come_in_and_so_do_admins(groups: list[str]) -> None:
    assert person_from_claims({**ADA, "groups": groups}, STAFF).groups == tuple(sorted(groups))


@pytest.mark.parametrize("groups", [[], ["visitors"], ["Staff"], ["staff2"]])
def test_people_in_no_allowed_group_do_not_come_in(groups: list[str]) -> None:
    with pytest.raises(SignInRefused, match="allowed groups"):
        person_from_claims({**ADA, "groups": groups}, STAFF)


def test_with_admin_groups_alone_everybody_comes_in() -> None:
    rules = IdTokenRules(issuer=ISSUER, client_id="ingot", admin_groups=frozenset({"ops"}))
    assert person_from_claims({**ADA, "groups": []}, rules).groups == ()


@pytest.mark.parametrize("rules", [STAFF, IdTokenRules(issuer=ISSUER, client_id="i", admin_groups=frozenset({"ops"}))])
def test_groups_that_matter_and_are_missing_are_refused(rules: IdTokenRules) -> None:
    with pytest.raises(SignInRefused, match="groups") as caught:
        person_from_claims({"sub": "1"}, rules)
    assert "INGOT_OIDC_GROUPS_CLAIM" in caught.value.hint


def test_groups_that_are_said_to_be_elsewhere_are_refused() -> None:
    with pytest.raises(SignInRefused, match="groups"):
        person_from_claims({"sub": "1", "_claim_names": {"groups": "src1"}}, RULES)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ("staff", "str"),
        ({"staff": True}, "dict"),
        (1, "int"),
        ([f"g{n}" for n in range(1001)], "1001 groups"),
        (["staff", "x" * 257], "256 characters"),
        (["staff", ""], "256 characters"),
        (["staff", 5], "256 characters"),
        (["staff", ["ops"]], "256 characters"),
        (["staff", "a\x00b"], "cannot be stored"),
    ],
)
@pytest.mark.parametrize("rules", [RULES, STAFF])
def test_groups_that_are_no_list_of_names_are_refused(groups: object, said: str, rules: IdTokenRules) -> None:
    with pytest.raises(SignInRefused, match=said):
        person_from_claims({**ADA, "groups": groups}, rules)


def test_as_many_groups_as_there_may_be_are_taken() -> None:
    groups = [f"{n:0256}" for n in range(1000)]
    assert person_from_claims({**ADA, "groups": groups}, RULES).groups == tuple(groups)


def test_groups_are_read_from_the_claim_that_is_named() -> None:
    rules = IdTokenRules(
        issuer=ISSUER, client_id="ingot", groups_claim="https://x/roles", allowed_groups=frozenset({"a"})
    )
    assert person_from_claims({"sub": "1", "groups": ["b"], "https://x/roles": ["a"]}, rules).groups == ("a",)
    with pytest.raises(SignInRefused):
        person_from_claims({"sub": "1", "groups": ["a"]}, rules)


@pytest.mark.parametrize(
    ("claims", "more"), [(ADA, False), ({**ADA, "email": None}, True), ({"sub": "1", "email": "a@b"}, True)]
)
def test_a_token_without_email_or_groups_lacks_something(claims: dict[str, Any], more: bool) -> None:
    assert needs_userinfo(claims, RULES) is more


def test_what_the_provider_told_is_added_and_the_token_counts_more() -> None:
    claims = merge_userinfo({"sub": "1", "name": "Ada"}, {"sub": "1", "name": "Eve", "groups": ["staff"]})
    assert claims == {"sub": "1", "name": "Ada", "groups": ["staff"]}


@pytest.mark.parametrize("subject", ["2", None, 1])
def test_what_was_told_of_somebody_else_is_refused(subject: object) -> None:
    with pytest.raises(SignInRefused, match="sub"):
        merge_userinfo({"sub": "1"}, {"sub": subject, "email": "ada@example.com"})


def test_one_email_is_not_verified_by_what_is_said_of_another() -> None:
    token: dict[str, object] = {"sub": "1", "email": "victim@example.com"}
    told: dict[str, object] = {"sub": "1", "email": "mine@example.com", "email_verified": True, "groups": []}
    person = person_from_claims(merge_userinfo(token, told), RULES)
    assert (person.email, person.email_verified) == ("victim@example.com", False)
    token = {"sub": "1", "email_verified": True}
    told = {"sub": "1", "email": "mine@example.com"}
    person = person_from_claims(merge_userinfo(token, told), RULES)
    assert (person.email, person.email_verified) == ("mine@example.com", False)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["1", "staff", "n"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*TOKEN, *ADA, "azp", "nbf", "_claim_names"]), ANYTHING))
def test_whatever_a_token_says_it_makes_a_person_who_may_come_in_or_nobody(changed: dict[str, Any]) -> None:
    claims = {**TOKEN, **ADA, **changed}
    try:
        check_id_token(claims, STAFF, nonce="n", now=NOW * MICROS)
        person = person_from_claims(claims, STAFF)
    except SignInRefused:
        return
    assert (person.issuer, person.subject) == (claims["iss"], claims["sub"])
    assert {"staff", "ops"} & set(person.groups)
    assert not person.email_verified or claims["email_verified"] in (True, "true")
