"""Claims of ID tokens: which are required to sign in, and how a person is derived from them."""

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
def test_a_valid_token_is_accepted(changed: dict[str, Any]) -> None:
    check(**changed)


@pytest.mark.parametrize(
    ("changed", "message"),
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
def test_an_invalid_token_is_rejected_with_the_wrong_claim(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(SignInRefused, match=message):
        check(**changed)


def test_a_person_is_derived_from_the_claims() -> None:
    assert person_from_claims(ADA, RULES) == Person(
        issuer=ISSUER,
        subject="1",
        email="ada@example.com",
        email_verified=True,
        name="Ada",
        picture="https://example.com/ada.png",
        groups=("ops", "staff"),
    )


def test_a_subject_alone_is_a_person() -> None:
    assert person_from_claims({"sub": "1"}, RULES) == Person(issuer=ISSUER, subject="1")


@pytest.mark.parametrize("subject", [None, "", 1, "x" * 256, "a\x00b", "\ud800", ["1"]])
def test_an_invalid_subject_is_rejected(subject: object) -> None:
    with pytest.raises(SignInRefused, match="sub"):
        person_from_claims({**ADA, "sub": subject}, RULES)


@pytest.mark.parametrize(("claim", "verified"), [(True, True), ("true", True), (None, False)])
def test_an_email_is_verified_only_if_the_claim_says_so(claim: object, verified: bool) -> None:
    person = person_from_claims({**ADA, "email_verified": claim}, RULES)
    assert (person.email, person.email_verified) == ("ada@example.com", verified)


@pytest.mark.parametrize("claim", [False, "false", "", 0, 1, "yes", []])
def test_an_unverified_email_is_rejected(claim: object) -> None:
    with pytest.raises(SignInRefused, match="verified"):
        person_from_claims({**ADA, "email_verified": claim}, RULES)


def test_a_person_without_an_email_is_not_verified() -> None:
    person = person_from_claims({"sub": "1", "email": "", "email_verified": True}, RULES)
    assert (person.email, person.email_verified) == (None, False)


def test_an_email_with_ambiguous_case_mapping_is_not_lowercased() -> None:
    assert person_from_claims({"sub": "1", "email": "\u212aim@example.com"}, RULES).email == "\u212aim@example.com"


@pytest.mark.parametrize("email", [5, "x" * 321, "a\x00@b", ["ada@example.com"]])
def test_an_invalid_email_is_rejected(email: object) -> None:
    with pytest.raises(SignInRefused, match="email"):
        person_from_claims({**ADA, "email": email}, RULES)


@pytest.mark.parametrize("picture", ["http://x/y.png", "javascript:alert(1)", "data:x", 5, "https://" + "x" * 2048])
def test_an_unsafe_picture_url_is_omitted(picture: object) -> None:
    assert person_from_claims({**ADA, "picture": picture}, RULES).picture is None


@pytest.mark.parametrize("name", [5, "", "x" * 257, "a\x00b"])
def test_an_invalid_name_is_omitted(name: object) -> None:
    assert person_from_claims({**ADA, "name": name}, RULES).name is None


@pytest.mark.parametrize("groups", [["staff"], ["ops"], ["visitors", "staff"]])
def test_people_in_an_allowed_or_admin_group_are_accepted(groups: list[str]) -> None:
    assert person_from_claims({**ADA, "groups": groups}, STAFF).groups == tuple(sorted(groups))


@pytest.mark.parametrize("groups", [[], ["visitors"], ["Staff"], ["staff2"]])
def test_people_in_no_allowed_group_are_rejected(groups: list[str]) -> None:
    with pytest.raises(SignInRefused, match="allowed groups"):
        person_from_claims({**ADA, "groups": groups}, STAFF)


def test_admin_groups_alone_do_not_restrict_who_is_accepted() -> None:
    rules = IdTokenRules(issuer=ISSUER, client_id="ingot", admin_groups=frozenset({"ops"}))
    assert person_from_claims({**ADA, "groups": []}, rules).groups == ()


@pytest.mark.parametrize("rules", [STAFF, IdTokenRules(issuer=ISSUER, client_id="i", admin_groups=frozenset({"ops"}))])
def test_a_missing_groups_claim_is_rejected_if_groups_matter(rules: IdTokenRules) -> None:
    with pytest.raises(SignInRefused, match="groups") as caught:
        person_from_claims({"sub": "1"}, rules)
    assert "INGOT_OIDC_GROUPS_CLAIM" in caught.value.hint


def test_distributed_groups_claims_are_rejected() -> None:
    with pytest.raises(SignInRefused, match="groups"):
        person_from_claims({"sub": "1", "_claim_names": {"groups": "src1"}}, RULES)


@pytest.mark.parametrize(
    ("groups", "message"),
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
def test_an_invalid_groups_claim_is_rejected(groups: object, message: str, rules: IdTokenRules) -> None:
    with pytest.raises(SignInRefused, match=message):
        person_from_claims({**ADA, "groups": groups}, rules)


def test_the_maximum_number_of_groups_is_accepted() -> None:
    groups = [f"{n:0256}" for n in range(1000)]
    assert person_from_claims({**ADA, "groups": groups}, RULES).groups == tuple(groups)


def test_groups_are_read_from_the_configured_claim() -> None:
    rules = IdTokenRules(
        issuer=ISSUER, client_id="ingot", groups_claim="https://x/roles", allowed_groups=frozenset({"a"})
    )
    assert person_from_claims({"sub": "1", "groups": ["b"], "https://x/roles": ["a"]}, rules).groups == ("a",)
    with pytest.raises(SignInRefused):
        person_from_claims({"sub": "1", "groups": ["a"]}, rules)


@pytest.mark.parametrize(
    ("claims", "is_needed"), [(ADA, False), ({**ADA, "email": None}, True), ({"sub": "1", "email": "a@b"}, True)]
)
def test_a_token_without_email_or_groups_needs_userinfo(claims: dict[str, Any], is_needed: bool) -> None:
    assert needs_userinfo(claims, RULES) is is_needed


def test_userinfo_adds_claims_and_never_overrides_the_token() -> None:
    claims = merge_userinfo({"sub": "1", "name": "Ada"}, {"sub": "1", "name": "Eve", "groups": ["staff"]})
    assert claims == {"sub": "1", "name": "Ada", "groups": ["staff"]}


@pytest.mark.parametrize("subject", ["2", None, 1])
def test_userinfo_of_another_subject_is_rejected(subject: object) -> None:
    with pytest.raises(SignInRefused, match="sub"):
        merge_userinfo({"sub": "1"}, {"sub": subject, "email": "ada@example.com"})


def test_userinfo_does_not_verify_an_email_of_the_token() -> None:
    token: dict[str, object] = {"sub": "1", "email": "victim@example.com"}
    userinfo: dict[str, object] = {"sub": "1", "email": "mine@example.com", "email_verified": True, "groups": []}
    person = person_from_claims(merge_userinfo(token, userinfo), RULES)
    assert (person.email, person.email_verified) == ("victim@example.com", False)
    token = {"sub": "1", "email_verified": True}
    userinfo = {"sub": "1", "email": "mine@example.com"}
    person = person_from_claims(merge_userinfo(token, userinfo), RULES)
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
def test_arbitrary_claims_give_an_allowed_person_or_a_rejection(changed: dict[str, Any]) -> None:
    claims = {**TOKEN, **ADA, **changed}
    try:
        check_id_token(claims, STAFF, nonce="n", now=NOW * MICROS)
        person = person_from_claims(claims, STAFF)
    except SignInRefused:
        return
    assert (person.issuer, person.subject) == (claims["iss"], claims["sub"])
    assert {"staff", "ops"} & set(person.groups)
    assert not person.email_verified or claims["email_verified"] in (True, "true")
