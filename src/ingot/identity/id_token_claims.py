"""What a provider says of somebody: from the claims of a token whose signature was checked to the person."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from math import isfinite
from typing import Final, Literal

import msgspec

from ingot.identity.people import Person, SignInRefused, normalize_email
from ingot.kernel.clock import MICROS
from ingot.kernel.errors import InvalidInput
from ingot.kernel.validation import check_storable

Claims = Mapping[str, object]

LEEWAY_SECONDS: Final = 60  # Clocks of two machines differ.
SUBJECT_CHARS_MAX: Final = 255
EMAIL_CHARS_MAX: Final = 320
NAME_CHARS_MAX: Final = 256
PICTURE_CHARS_MAX: Final = 2048
GROUPS_MAX: Final = 1000
GROUP_CHARS_MAX: Final = 256
EMAIL_VERIFIED_VALUES: Final[dict[object, bool]] = {True: True, False: False, "true": True, "false": False, None: False}


class IdTokenRules(msgspec.Struct, frozen=True, kw_only=True):
    """Which tokens are for us, and which people may come in."""

    issuer: str
    client_id: str
    groups_claim: str = "groups"
    allowed_groups: frozenset[str] = frozenset()  # None of them: everybody.
    admin_groups: frozenset[str] = frozenset()

    @property
    def needs_groups(self) -> bool:
        """Whether it matters in which groups somebody is."""
        return bool(self.allowed_groups or self.admin_groups)


def check_id_token(claims: Claims, rules: IdTokenRules, *, nonce: str, now: int) -> None:
    """Check that a token is of our provider, for us, for this sign-in and for now. Raises `SignInRefused`."""
    if claims.get("iss") != rules.issuer:
        raise SignInRefused("the token is of another issuer")
    _check_audience(claims, rules.client_id)
    _check_times(claims, now / MICROS)
    told = claims.get("nonce")
    if not isinstance(told, str) or not hmac.compare_digest(told.encode(errors="replace"), nonce.encode()):
        raise SignInRefused("the token is for another sign-in: its nonce is not the one that was sent")


def _check_audience(claims: Claims, client_id: str) -> None:
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if client_id not in audiences:
        raise SignInRefused("the token is for another audience")
    party = claims.get("azp")
    if party != client_id and (party is not None or len(audiences) > 1):
        raise SignInRefused("the token was made for another party (azp)")


def _check_times(claims: Claims, now: float) -> None:
    if _time_claim(claims, "exp") <= now - LEEWAY_SECONDS:
        raise SignInRefused("the token has expired")
    if _time_claim(claims, "iat") > now + LEEWAY_SECONDS:
        raise SignInRefused("the token was made in the future; a clock is wrong")
    if claims.get("nbf") is not None and _time_claim(claims, "nbf") > now + LEEWAY_SECONDS:
        raise SignInRefused("the token does not hold yet; a clock is wrong")


def _time_claim(claims: Claims, name: Literal["exp", "iat", "nbf"]) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise SignInRefused(f"the token has no time in {name}")
    return value


def needs_userinfo(claims: Claims, rules: IdTokenRules) -> bool:
    """Whether the token leaves out what the provider may tell when it is asked."""
    return claims.get("email") is None or claims.get(rules.groups_claim) is None


def merge_userinfo(claims: Claims, told: Claims) -> dict[str, object]:
    """The claims of a token, and what else the provider told. What the token says counts more.

    Raises `SignInRefused` when the provider told of somebody else. Whether an email is verified is said of the email
    beside it, so both come from one place.
    """
    if told.get("sub") != claims.get("sub"):
        raise SignInRefused("the provider told of another person than the one who signed in")
    if claims.get("email") is not None:
        told = {name: value for name, value in told.items() if name not in ("email", "email_verified")}
    else:
        claims = {name: value for name, value in claims.items() if name not in ("email", "email_verified")}
    return {**told, **{name: value for name, value in claims.items() if value is not None}}


def person_from_claims(claims: Claims, rules: IdTokenRules) -> Person:
    """The person whom these claims are about, if they may come in. Raises `SignInRefused`."""
    groups = _groups(claims, rules)
    email = _email(claims)
    person = Person(
        issuer=rules.issuer,
        subject=_subject(claims),
        email=email,
        email_verified=email is not None and _is_email_verified(claims),
        name=_optional_text(claims, "name", chars_max=NAME_CHARS_MAX),
        picture=_picture(claims),
        groups=groups,
    )
    if rules.allowed_groups and rules.allowed_groups.union(rules.admin_groups).isdisjoint(groups):
        refusal = SignInRefused(
            "the person is in none of the groups that may sign in",
            hint="Ask who runs this server for a group that may: INGOT_OIDC_ALLOWED_GROUPS lists them.",
        )
        refusal.person = person
        raise refusal
    return person


def _subject(claims: Claims) -> str:
    return _check_text(claims.get("sub"), name="subject (sub)", chars_max=SUBJECT_CHARS_MAX)


def _email(claims: Claims) -> str | None:
    """The email, as it is compared."""
    if claims.get("email") in (None, ""):
        return None
    return normalize_email(_check_text(claims.get("email"), name="email", chars_max=EMAIL_CHARS_MAX))


def _is_email_verified(claims: Claims) -> bool:
    """Whether the email is known to be the person's; some providers write the answer as a text."""
    said = claims.get("email_verified")
    if not isinstance(said, bool | str | None) or said not in EMAIL_VERIFIED_VALUES:
        raise SignInRefused("the provider does not say in a way that we understand whether the email is verified")
    if said is not None and not EMAIL_VERIFIED_VALUES[said]:
        raise SignInRefused(
            "the email is not verified", hint="Verify the email at the provider, and begin again at /auth/login."
        )
    return EMAIL_VERIFIED_VALUES[said]


def _groups(claims: Claims, rules: IdTokenRules) -> tuple[str, ...]:
    groups = claims.get(rules.groups_claim)
    if groups is None:
        elsewhere = claims.get("_claim_names")  # A provider that has too many of them says where they are instead.
        if rules.needs_groups or (isinstance(elsewhere, dict) and rules.groups_claim in elsewhere):
            raise SignInRefused(
                "the provider does not say in which groups the person is",
                hint="Have the provider put them in the claim of INGOT_OIDC_GROUPS_CLAIM, or name another claim there.",
            )
        return ()
    if not isinstance(groups, list):
        raise SignInRefused(f"the groups are a {type(groups).__name__}; they are a list")
    if len(groups) > GROUPS_MAX:
        raise SignInRefused(
            f"the person is in {len(groups)} groups; it goes up to {GROUPS_MAX}",
            hint="Have the provider list only groups that matter here.",
        )
    return tuple(sorted({_check_text(group, name="group", chars_max=GROUP_CHARS_MAX) for group in groups}))


def _check_text(value: object, *, name: str, chars_max: int) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= chars_max:
        raise SignInRefused(f"a {name} is no text of 1 to {chars_max} characters")
    try:
        return check_storable(value, name=name)
    except InvalidInput as error:
        raise SignInRefused(error.detail) from None


def _optional_text(claims: Claims, name: str, *, chars_max: int) -> str | None:
    """A text that nothing depends on: one that cannot be used is left out."""
    value = claims.get(name)
    if value is None:
        return None
    try:
        return _check_text(value, name=name, chars_max=chars_max)
    except SignInRefused:
        return None


def _picture(claims: Claims) -> str | None:
    picture = _optional_text(claims, "picture", chars_max=PICTURE_CHARS_MAX)
    return picture if picture is not None and picture.startswith("https://") else None
