"""The OpenID provider that people sign in with: the authorization code flow, with PKCE."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, Literal, TypeVar
from urllib.parse import quote_plus, urlencode, urlsplit

import msgspec

from ingot.identity.id_token_claims import (
    IdTokenRules,
    check_id_token,
    merge_userinfo,
    needs_userinfo,
    person_from_claims,
)
from ingot.identity.people import Person, SignInRefused
from ingot.kernel.clock import MICROS, Clock
from ingot.kernel.redaction import NoRepr
from ingot.outbound.bounded_http import BoundedHttpClient, ProviderResponse
from ingot.outbound.errors import ProviderUnavailable
from ingot.outbound.provider_keys import JsonWebKeySet, SigningKeys, UnknownKey
from ingot.settings import Settings, is_secure_url

TIMEOUT_SECONDS: Final = 10.0
METADATA_AGE_SECONDS_MAX: Final = 3600.0  # How long what the provider says of itself is taken for true.
KEYS_REFRESH_SECONDS: Final = 60.0
FAILURE_CACHE_SECONDS: Final = (
    2.0  # Who asks meanwhile gets the same failure, instead of standing in a queue for another.
)
SCOPES: Final = ("openid", "profile", "email")
GROUPS_SCOPE: Final = "groups"
CLIENT_ERRORS: Final = ("invalid_client", "unauthorized_client", "unsupported_grant_type", "invalid_scope")
GRANT_ERRORS: Final = ("invalid_grant", "invalid_request")

Prompt = Literal["none", "login"]
T = TypeVar("T")
U = TypeVar("U")


class ProviderMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider says of itself."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    scopes_supported: tuple[str, ...] = ()
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    authorization_response_iss_parameter_supported: bool = False


class ProviderTokens(NoRepr, frozen=True, kw_only=True):
    """What a provider gives for a code."""

    id_token: str
    access_token: str | None = None


class TokenErrorResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Why a provider gives nothing for a code."""

    error: str = ""


class CachedValue(Generic[T]):
    """Something that is asked for once for all who need it, and kept for a time; a failure too, for a moment."""

    def __init__(self, clock: Clock, ask: Callable[[], Awaitable[T]]) -> None:
        self._clock = clock
        self._fetch = ask
        self._lock = asyncio.Lock()
        self._value: tuple[T, int] | None = None
        self._failure: tuple[ProviderUnavailable, int] | None = None

    async def get(self, *, max_age_seconds: float = METADATA_AGE_SECONDS_MAX) -> T:
        """It, no older than this. Raises `ProviderUnavailable`."""
        async with self._lock:
            if (found := self._if_fresh(self._value, max_age_seconds)) is not None:
                return found
            if (failure := self._if_fresh(self._failure, FAILURE_CACHE_SECONDS)) is not None:
                raise ProviderUnavailable(failure.detail, hint=failure.hint)
            try:
                found = await self._fetch()
            except ProviderUnavailable as error:
                self._failure = error, self._clock.micros()
                raise
            self._value = found, self._clock.micros()
            return found

    def _if_fresh(self, kept: tuple[U, int] | None, seconds: float) -> U | None:
        return kept[0] if kept is not None and self._clock.micros() < kept[1] + seconds * MICROS else None


class Provider:
    """Sends people to the provider of the settings, and learns who came back."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        assert settings.oidc_issuer is not None
        assert settings.oidc_client_id is not None
        assert settings.callback_url is not None
        self.issuer = settings.oidc_issuer
        self._client_id = settings.oidc_client_id
        self._client_secret = settings.oidc_client_secret
        self._callback_url = settings.callback_url
        self._scopes = settings.oidc_scopes
        self._rules = IdTokenRules(
            issuer=self.issuer,
            client_id=self._client_id,
            groups_claim=settings.oidc_groups_claim,
            allowed_groups=frozenset(settings.oidc_allowed_groups),
            admin_groups=frozenset(settings.oidc_admin_groups),
        )
        self._clock = clock
        self._http = BoundedHttpClient(timeout_seconds=timeout_seconds, ssl_context=ssl_context)
        self._metadata = CachedValue(clock, self._discover)
        self._keys = CachedValue(clock, self._fetch_keys)

    async def authorization_url(self, *, state: str, nonce: str, verifier: str, prompt: Prompt | None = None) -> str:
        """Where to send somebody to sign in; with the prompt `none` the provider is to show them nothing.

        Raises `ProviderUnavailable`.
        """
        metadata = await self._metadata.get()
        asked = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": self._callback_url,
            "scope": " ".join(self._scopes or _default_scopes(metadata)),
            "state": state,
            "nonce": nonce,
            "code_challenge": _code_challenge(verifier),
            "code_challenge_method": "S256",
        }
        if prompt is not None:
            asked["prompt"] = prompt
        place = metadata.authorization_endpoint
        return f"{place}{'&' if urlsplit(place).query else '?'}{urlencode(asked)}"

    async def fetch_person(self, *, code: str, nonce: str, verifier: str, iss: str | None = None) -> Person:
        """Who came back with this code; `iss` is whom the answer says it is from.

        Raises `SignInRefused`, or `ProviderUnavailable`.
        """
        metadata = await self._metadata.get()
        if iss != self.issuer and (iss is not None or metadata.authorization_response_iss_parameter_supported):
            raise SignInRefused("the answer is of another provider than the one that was asked (iss)")
        if not _is_sendable(code):
            raise SignInRefused("the code is none that a provider gives")
        tokens = await self._exchange_code(metadata, code, verifier)
        claims = await self._verified_claims(tokens.id_token)
        check_id_token(claims, self._rules, nonce=nonce, now=self._clock.micros())
        if metadata.userinfo_endpoint and tokens.access_token and needs_userinfo(claims, self._rules):
            claims = merge_userinfo(claims, await self._fetch_userinfo(metadata.userinfo_endpoint, tokens.access_token))
        return person_from_claims(claims, self._rules)

    async def close(self) -> None:
        """Let go of connections."""
        await self._http.close()

    async def _discover(self) -> ProviderMetadata:
        place = f"{self.issuer.removesuffix('/')}/.well-known/openid-configuration"
        answer = await self._http.request(place, name="configuration")
        metadata = _require_success(answer, name="configuration").decode(ProviderMetadata, name="configuration")
        if metadata.issuer != self.issuer:
            raise ProviderUnavailable(
                "the provider names itself otherwise than INGOT_OIDC_ISSUER does",
                hint="Set INGOT_OIDC_ISSUER to exactly what the provider calls itself, a / at the end too.",
            )
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint"):
            if (url := getattr(metadata, name)) is not None and not self._is_trusted(url):
                raise ProviderUnavailable(f"the {name} of the provider is not on https")
        return metadata

    def _is_trusted(self, url: str) -> bool:
        """Whether nobody else answers there; http is for a provider that is itself on this machine."""
        try:
            parts = urlsplit(url)
            here = parts.scheme == "https" or self.issuer.startswith("http:")
            return bool(parts.hostname) and is_secure_url(parts) and here
        except ValueError:
            return False

    async def _fetch_keys(self) -> SigningKeys:
        metadata = await self._metadata.get()
        answer = await self._http.request(metadata.jwks_uri, name="keys")
        return SigningKeys(_require_success(answer, name="keys").decode(JsonWebKeySet, name="keys").keys)

    async def _verified_claims(self, token: str) -> dict[str, object]:
        """What a token says; a key that is not known is looked for once more, but not too often."""
        try:
            return (await self._keys.get()).verified_claims(token)
        except UnknownKey:
            pass
        try:
            return (await self._keys.get(max_age_seconds=KEYS_REFRESH_SECONDS)).verified_claims(token)
        except UnknownKey:
            raise SignInRefused("the token is signed with a key that the provider does not list") from None

    async def _exchange_code(self, metadata: ProviderMetadata, code: str, verifier: str) -> ProviderTokens:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._callback_url,
            "code_verifier": verifier,
        }
        headers: dict[str, str] = {}
        methods = metadata.token_endpoint_auth_methods_supported
        if self._client_secret is None:
            form["client_id"] = self._client_id
        elif "client_secret_post" in methods and "client_secret_basic" not in methods:
            form |= {"client_id": self._client_id, "client_secret": self._client_secret}
        else:
            headers["authorization"] = _basic_auth(self._client_id, self._client_secret)
        answer = await self._http.request(
            metadata.token_endpoint, name="answer to the code", headers=headers, form=form
        )
        if answer.status != 200:
            raise _token_error(answer)
        return answer.decode(ProviderTokens, name="answer to the code")

    async def _fetch_userinfo(self, place: str, access_token: str) -> dict[str, Any]:
        if not _is_sendable(access_token):
            raise ProviderUnavailable("the access token of the provider cannot be sent")
        answer = await self._http.request(place, name="userinfo", headers={"authorization": f"Bearer {access_token}"})
        return _require_success(answer, name="userinfo").decode(dict[str, Any], name="userinfo")


def _default_scopes(metadata: ProviderMetadata) -> tuple[str, ...]:
    return (*SCOPES, GROUPS_SCOPE) if GROUPS_SCOPE in metadata.scopes_supported else SCOPES


def _is_sendable(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _code_challenge(verifier: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")


def _basic_auth(client_id: str, secret: str) -> str:
    return "Basic " + base64.b64encode(f"{quote_plus(client_id)}:{quote_plus(secret)}".encode()).decode()


def _require_success(answer: ProviderResponse, *, name: str) -> ProviderResponse:
    if answer.status != 200:
        raise ProviderUnavailable(f"the {name} of the provider is a {answer.status}")
    return answer


def _token_error(answer: ProviderResponse) -> SignInRefused | ProviderUnavailable:
    """Why there are no tokens for a code. What the provider says of it is shown only where we know the words."""
    error = answer.decode(TokenErrorResponse, name="answer to the code").error
    if error in GRANT_ERRORS:
        return SignInRefused(f"the provider does not take the code ({error}): it was used, or is too old or another's")
    if error in CLIENT_ERRORS:
        return ProviderUnavailable(
            f"the provider does not take this server for a client of its own ({error})",
            hint="Whoever runs this server looks at INGOT_OIDC_CLIENT_ID and INGOT_OIDC_CLIENT_SECRET.",
        )
    return ProviderUnavailable(f"the answer to the code of the provider is a {answer.status}")
