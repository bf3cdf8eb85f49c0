"""ID token claims: their validation, and the person that they describe. Signatures are checked before."""

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

LEEWAY_SECONDS: Final = 60  # How much the clocks of the server and the provider may differ.
SUBJECT_CHARS_MAX: Final = 255
EMAIL_CHARS_MAX: Final = 320
NAME_CHARS_MAX: Final = 256
PICTURE_CHARS_MAX: Final = 2048
GROUPS_MAX: Final = 1000
GROUP_CHARS_MAX: Final = 256
CLOCK_HINT: Final = "The operator of this server has to synchronize its clock with that of the provider."
EMAIL_VERIFIED_VALUES: Final[dict[object, bool]] = {True: True, False: False, "true": True, "false": False, None: False}


class IdTokenRules(msgspec.Struct, frozen=True, kw_only=True):
    """Which ID tokens are accepted, and which people may sign in."""

    issuer: str
    client_id: str
    groups_claim: str = "groups"
    allowed_groups: frozenset[str] = frozenset()  # If empty, everybody may sign in.
    admin_groups: frozenset[str] = frozenset()

    @property
    def needs_groups(self) -> bool:
        """Whether the groups of a person make a difference."""
        return bool(self.allowed_groups or self.admin_groups)


def check_id_token(claims: Claims, rules: IdTokenRules, *, nonce: str, now: int) -> None:
    """Check that an ID token is from our provider, for this client and sign-in, and valid at `now`.

    `now` is in microseconds. Raises `SignInRefused`.
    """
    if claims.get("iss") != rules.issuer:
        raise SignInRefused("the ID token is from a different issuer (iss)")
    _check_audience(claims, rules.client_id)
    _check_times(claims, now / MICROS)
    token_nonce = claims.get("nonce")
    if not isinstance(token_nonce, str) or not hmac.compare_digest(
        token_nonce.encode(errors="replace"), nonce.encode()
    ):
        raise SignInRefused("the ID token belongs to a different sign-in (nonce)")


def _check_audience(claims: Claims, client_id: str) -> None:
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if client_id not in audiences:
        raise SignInRefused("the ID token is for a different audience (aud)")
    authorized_party = claims.get("azp")
    if authorized_party != client_id and (authorized_party is not None or len(audiences) > 1):
        raise SignInRefused("the ID token was issued to a different client (azp)")


def _check_times(claims: Claims, now: float) -> None:
    if _time_claim(claims, "exp") <= now - LEEWAY_SECONDS:
        raise SignInRefused("the ID token has expired (exp)")
    if _time_claim(claims, "iat") > now + LEEWAY_SECONDS:
        raise SignInRefused("the ID token was issued in the future (iat)", hint=CLOCK_HINT)
    if claims.get("nbf") is not None and _time_claim(claims, "nbf") > now + LEEWAY_SECONDS:
        raise SignInRefused("the ID token is not valid yet (nbf)", hint=CLOCK_HINT)


def _time_claim(claims: Claims, name: Literal["exp", "iat", "nbf"]) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise SignInRefused(f"the ID token has no valid time in {name}")
    return value


def needs_userinfo(claims: Claims, rules: IdTokenRules) -> bool:
    """Return whether the ID token lacks claims that the userinfo endpoint may have."""
    return claims.get("email") is None or claims.get(rules.groups_claim) is None


def merge_userinfo(claims: Claims, userinfo: Claims) -> dict[str, object]:
    """Add the claims of userinfo to those of the ID token, which take precedence.

    `email` and `email_verified` are taken from the same source, because one is a statement about the other. Raises
    `SignInRefused` if userinfo is about another person.
    """
    if userinfo.get("sub") != claims.get("sub"):
        raise SignInRefused("the ID token and userinfo are about different people (sub)")
    if claims.get("email") is not None:
        userinfo = {name: value for name, value in userinfo.items() if name not in ("email", "email_verified")}
    else:
        claims = {name: value for name, value in claims.items() if name not in ("email", "email_verified")}
    return {**userinfo, **{name: value for name, value in claims.items() if value is not None}}


def person_from_claims(claims: Claims, rules: IdTokenRules) -> Person:
    """Return the person whom these claims describe. Raises `SignInRefused` if they may not sign in.

    The claims identify the person by their subject. If anything else is the reason, the error contains the person with
    the groups that are known, or with none.
    """
    person = Person(issuer=rules.issuer, subject=_subject(claims))
    try:
        person = msgspec.structs.replace(person, groups=_groups(claims, rules))
        email = _email(claims)
        person = msgspec.structs.replace(
            person,
            email=email,
            email_verified=email is not None and _is_email_verified(claims),
            name=_optional_text(claims, "name", chars_max=NAME_CHARS_MAX),
            picture=_picture(claims),
        )
        _require_allowed_group(person, rules)
    except SignInRefused as refusal:
        refusal.person = person
        raise
    return person


def _require_allowed_group(person: Person, rules: IdTokenRules) -> None:
    if rules.allowed_groups and rules.allowed_groups.union(rules.admin_groups).isdisjoint(person.groups):
        raise SignInRefused(
            "the person is in none of the allowed groups",
            hint="Ask the operator of this server for access. INGOT_OIDC_ALLOWED_GROUPS lists the allowed groups.",
        )


def _subject(claims: Claims) -> str:
    return _check_text(claims.get("sub"), name="subject (sub)", chars_max=SUBJECT_CHARS_MAX)


def _email(claims: Claims) -> str | None:
    """Return the normalized email."""
    if claims.get("email") in (None, ""):
        return None
    return normalize_email(_check_text(claims.get("email"), name="email", chars_max=EMAIL_CHARS_MAX))


def _is_email_verified(claims: Claims) -> bool:
    """Return whether the provider has verified the email. Some providers send a string instead of a boolean."""
    claim = claims.get("email_verified")
    if not isinstance(claim, bool | str | None) or claim not in EMAIL_VERIFIED_VALUES:
        raise SignInRefused("the claim email_verified must be true or false")
    if claim is not None and not EMAIL_VERIFIED_VALUES[claim]:
        raise SignInRefused(
            "the email is not verified", hint="Verify the email at the provider, then start again at /auth/login."
        )
    return EMAIL_VERIFIED_VALUES[claim]


def _groups(claims: Claims, rules: IdTokenRules) -> tuple[str, ...]:
    groups = claims.get(rules.groups_claim)
    if groups is None:
        # Instead of a long list of groups, some providers send a reference to it (a distributed claim).
        distributed_claims = claims.get("_claim_names")
        if rules.needs_groups or (isinstance(distributed_claims, dict) and rules.groups_claim in distributed_claims):
            raise SignInRefused(
                "the provider does not list the person's groups",
                hint="Configure the provider to send groups, or set INGOT_OIDC_GROUPS_CLAIM to the claim it uses.",
            )
        return ()
    if not isinstance(groups, list):
        raise SignInRefused(f"the groups claim must be a list, got {type(groups).__name__}")
    if len(groups) > GROUPS_MAX:
        raise SignInRefused(
            f"the person is in {len(groups)} groups; at most {GROUPS_MAX} are supported",
            hint="Configure the provider to list only the groups that Ingot needs.",
        )
    return tuple(sorted({_check_text(group, name="group", chars_max=GROUP_CHARS_MAX) for group in groups}))


def _check_text(value: object, *, name: str, chars_max: int) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= chars_max:
        raise SignInRefused(f"{name} must be a string of 1 to {chars_max} characters")
    try:
        return check_storable(value, name=name)
    except InvalidInput as error:
        raise SignInRefused(error.detail) from None


def _optional_text(claims: Claims, name: str, *, chars_max: int) -> str | None:
    """Return a claim that is only displayed, or `None` if it is missing or not valid."""
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
