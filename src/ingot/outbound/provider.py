"""Sign-in with an OpenID Connect provider: the authorization code flow with PKCE."""

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
METADATA_AGE_SECONDS_MAX: Final = 3600.0
KEYS_REFRESH_SECONDS: Final = 60.0
# How long callers get a cached failure. Otherwise each of them could wait for its own timeout.
FAILURE_CACHE_SECONDS: Final = 2.0
SCOPES: Final = ("openid", "profile", "email")
GROUPS_SCOPE: Final = "groups"
CLIENT_ERRORS: Final = ("invalid_client", "unauthorized_client", "unsupported_grant_type", "invalid_scope")
GRANT_ERRORS: Final = ("invalid_grant", "invalid_request")

Prompt = Literal["none", "login"]
T = TypeVar("T")
U = TypeVar("U")


class ProviderMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration that a provider publishes (OpenID Connect Discovery)."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    scopes_supported: tuple[str, ...] = ()
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    authorization_response_iss_parameter_supported: bool = False


class ProviderTokens(NoRepr, frozen=True, kw_only=True):
    """The tokens that a provider issues for an authorization code."""

    id_token: str
    access_token: str | None = None


class TokenErrorResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The error response of a token endpoint."""

    error: str = ""


class CachedValue(Generic[T]):
    """A value that is fetched once for concurrent callers and cached. A failure is cached briefly, too."""

    def __init__(self, clock: Clock, fetch: Callable[[], Awaitable[T]]) -> None:
        self._clock = clock
        self._fetch = fetch
        self._lock = asyncio.Lock()
        self._value: tuple[T, int] | None = None
        self._failure: tuple[ProviderUnavailable, int] | None = None

    async def get(self, *, max_age_seconds: float = METADATA_AGE_SECONDS_MAX) -> T:
        """Return a value that is not older than `max_age_seconds`. Raises `ProviderUnavailable`."""
        async with self._lock:
            if (cached_value := self._if_fresh(self._value, max_age_seconds)) is not None:
                return cached_value
            if (failure := self._if_fresh(self._failure, FAILURE_CACHE_SECONDS)) is not None:
                raise ProviderUnavailable(failure.detail, hint=failure.hint)
            try:
                value = await self._fetch()
            except ProviderUnavailable as error:
                self._failure = error, self._clock.micros()
                raise
            self._value = value, self._clock.micros()
            return value

    def _if_fresh(self, cached: tuple[U, int] | None, seconds: float) -> U | None:
        return cached[0] if cached is not None and self._clock.micros() < cached[1] + seconds * MICROS else None


class Provider:
    """The client of the configured provider. Sends people there and identifies them when they return."""

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
        """Return the URL at the provider where a person signs in. With the prompt `none`, the provider shows no page.

        Raises `ProviderUnavailable`.
        """
        metadata = await self._metadata.get()
        parameters = {
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
            parameters["prompt"] = prompt
        endpoint = metadata.authorization_endpoint
        return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(parameters)}"

    async def fetch_person(self, *, code: str, nonce: str, verifier: str, iss: str | None = None) -> Person:
        """Return the person who returned from the provider with this code.

        `iss` is the issuer that the authorization response names, if any. Raises `SignInRefused` or
        `ProviderUnavailable`.
        """
        metadata = await self._metadata.get()
        if iss != self.issuer and (iss is not None or metadata.authorization_response_iss_parameter_supported):
            raise SignInRefused("the response is from a different issuer than INGOT_OIDC_ISSUER (iss)")
        if not _is_sendable(code):
            raise SignInRefused("the authorization code contains characters that are not allowed")
        tokens = await self._exchange_code(metadata, code, verifier)
        claims = await self._verified_claims(tokens.id_token)
        check_id_token(claims, self._rules, nonce=nonce, now=self._clock.micros())
        if metadata.userinfo_endpoint and tokens.access_token and needs_userinfo(claims, self._rules):
            claims = merge_userinfo(claims, await self._fetch_userinfo(metadata.userinfo_endpoint, tokens.access_token))
        return person_from_claims(claims, self._rules)

    async def close(self) -> None:
        """Close all connections to the provider."""
        await self._http.close()

    async def _discover(self) -> ProviderMetadata:
        url = f"{self.issuer.removesuffix('/')}/.well-known/openid-configuration"
        response = await self._http.request(url, name="configuration")
        metadata = _require_success(response, name="configuration").decode(ProviderMetadata, name="configuration")
        if metadata.issuer != self.issuer:
            raise ProviderUnavailable(
                "the issuer in the provider's configuration differs from INGOT_OIDC_ISSUER",
                hint="Set INGOT_OIDC_ISSUER to exactly the provider's issuer, including a trailing / if there is one.",
            )
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint"):
            if (url := getattr(metadata, name)) is not None and not self._is_trusted(url):
                raise ProviderUnavailable(f"the {name} in the provider's configuration is not an https URL")
        return metadata

    def _is_trusted(self, url: str) -> bool:
        """Return whether the URL is https. A provider on this machine may use http throughout."""
        try:
            parts = urlsplit(url)
            is_scheme_allowed = parts.scheme == "https" or self.issuer.startswith("http:")
            return bool(parts.hostname) and is_secure_url(parts) and is_scheme_allowed
        except ValueError:
            return False

    async def _fetch_keys(self) -> SigningKeys:
        metadata = await self._metadata.get()
        response = await self._http.request(metadata.jwks_uri, name="key set")
        return SigningKeys(_require_success(response, name="key set").decode(JsonWebKeySet, name="key set").keys)

    async def _verified_claims(self, token: str) -> dict[str, object]:
        """Verify a token and return its claims. The keys are fetched again if its key is unknown, but not too often."""
        try:
            return (await self._keys.get()).verified_claims(token)
        except UnknownKey:
            pass
        try:
            return (await self._keys.get(max_age_seconds=KEYS_REFRESH_SECONDS)).verified_claims(token)
        except UnknownKey:
            raise SignInRefused("the ID token is signed with a key that the provider does not publish") from None

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
        response = await self._http.request(metadata.token_endpoint, name="token response", headers=headers, form=form)
        if response.status != 200:
            raise _token_error(response)
        return response.decode(ProviderTokens, name="token response")

    async def _fetch_userinfo(self, url: str, access_token: str) -> dict[str, Any]:
        if not _is_sendable(access_token):
            raise ProviderUnavailable("the provider's access token contains characters that are not allowed")
        response = await self._http.request(url, name="userinfo", headers={"authorization": f"Bearer {access_token}"})
        return _require_success(response, name="userinfo").decode(dict[str, Any], name="userinfo")


def _default_scopes(metadata: ProviderMetadata) -> tuple[str, ...]:
    return (*SCOPES, GROUPS_SCOPE) if GROUPS_SCOPE in metadata.scopes_supported else SCOPES


def _is_sendable(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _code_challenge(verifier: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")


def _basic_auth(client_id: str, secret: str) -> str:
    return "Basic " + base64.b64encode(f"{quote_plus(client_id)}:{quote_plus(secret)}".encode()).decode()


def _require_success(response: ProviderResponse, *, name: str) -> ProviderResponse:
    if response.status != 200:
        raise ProviderUnavailable(f"the provider answered with status {response.status} instead of its {name}")
    return response


def _token_error(response: ProviderResponse) -> SignInRefused | ProviderUnavailable:
    """Return the error for a failed token request. Only known error codes of the provider are shown to people."""
    error = response.decode(TokenErrorResponse, name="token response").error
    if error in GRANT_ERRORS:
        return SignInRefused(
            f"the provider rejected the authorization code ({error})",
            hint="A code is valid once and for about a minute. Start again at /auth/login.",
        )
    if error in CLIENT_ERRORS:
        return ProviderUnavailable(
            f"the provider rejected this server as a client ({error})",
            hint="The operator of this server has to check INGOT_OIDC_CLIENT_ID and INGOT_OIDC_CLIENT_SECRET.",
        )
    return ProviderUnavailable(f"the provider answered with status {response.status} instead of tokens")
