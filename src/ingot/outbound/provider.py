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

from ingot.identity.claims import Rules, check_token, lacks, person_of, with_more
from ingot.identity.people import Person, SignInRefused
from ingot.kernel.clock import MICROS, Clock
from ingot.kernel.hidden import Unshown
from ingot.outbound.asking import Answer, Asking
from ingot.outbound.errors import ProviderUnavailable
from ingot.outbound.keys import Keys, KeySet, UnknownKey
from ingot.settings import Settings, is_trusted

ANSWER_SECONDS: Final = 10.0
KNOWN_SECONDS: Final = 3600.0  # How long what the provider says of itself is taken for true.
KEYS_AGAIN_SECONDS: Final = 60.0
FAILED_SECONDS: Final = 2.0  # Who asks meanwhile gets the same failure, instead of standing in a queue for another.
SCOPES: Final = ("openid", "profile", "email")
GROUPS_SCOPE: Final = "groups"
OUR_FAULTS: Final = ("invalid_client", "unauthorized_client", "unsupported_grant_type", "invalid_scope")
THEIR_FAULTS: Final = ("invalid_grant", "invalid_request")

Prompt = Literal["none", "login"]
T = TypeVar("T")
U = TypeVar("U")


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider says of itself."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    scopes_supported: tuple[str, ...] = ()
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    authorization_response_iss_parameter_supported: bool = False


class Tokens(Unshown, frozen=True, kw_only=True):
    """What a provider gives for a code."""

    id_token: str
    access_token: str | None = None


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a provider gives nothing for a code."""

    error: str = ""


class Kept(Generic[T]):
    """Something that is asked for once for all who need it, and kept for a time; a failure too, for a moment."""

    def __init__(self, clock: Clock, ask: Callable[[], Awaitable[T]]) -> None:
        self._clock = clock
        self._ask = ask
        self._asking = asyncio.Lock()
        self._found: tuple[T, int] | None = None
        self._failure: tuple[ProviderUnavailable, int] | None = None

    async def get(self, *, seconds: float = KNOWN_SECONDS) -> T:
        """It, no older than this. Raises `ProviderUnavailable`."""
        async with self._asking:
            if (found := self._fresh(self._found, seconds)) is not None:
                return found
            if (failure := self._fresh(self._failure, FAILED_SECONDS)) is not None:
                raise ProviderUnavailable(failure.detail, hint=failure.hint)
            try:
                found = await self._ask()
            except ProviderUnavailable as error:
                self._failure = error, self._clock.micros()
                raise
            self._found = found, self._clock.micros()
            return found

    def _fresh(self, kept: tuple[U, int] | None, seconds: float) -> U | None:
        return kept[0] if kept is not None and self._clock.micros() < kept[1] + seconds * MICROS else None


class Provider:
    """Sends people to the provider of the settings, and learns who came back."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        *,
        answer_seconds: float = ANSWER_SECONDS,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        assert settings.oidc_issuer is not None
        assert settings.oidc_client_id is not None
        assert settings.callback_url is not None
        self.issuer = settings.oidc_issuer
        self._client_id = settings.oidc_client_id
        self._client_secret = settings.oidc_client_secret
        self._callback_url = settings.callback_url
        self._scopes = settings.oidc_scopes
        self._rules = Rules(
            issuer=self.issuer,
            client_id=self._client_id,
            groups_claim=settings.oidc_groups_claim,
            allowed_groups=frozenset(settings.oidc_allowed_groups),
            admin_groups=frozenset(settings.oidc_admin_groups),
        )
        self._clock = clock
        self._asking = Asking(answer_seconds=answer_seconds, trust=trust)
        self._metadata = Kept(clock, self._discover)
        self._keys = Kept(clock, self._ask_for_keys)

    async def begin(self, *, state: str, nonce: str, verifier: str, prompt: Prompt | None = None) -> str:
        """Where to send somebody to sign in; with the prompt `none` the provider is to show them nothing.

        Raises `ProviderUnavailable`.
        """
        metadata = await self._metadata.get()
        asked = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": self._callback_url,
            "scope": " ".join(self._scopes or _scopes_of(metadata)),
            "state": state,
            "nonce": nonce,
            "code_challenge": _challenge(verifier),
            "code_challenge_method": "S256",
        }
        if prompt is not None:
            asked["prompt"] = prompt
        place = metadata.authorization_endpoint
        return f"{place}{'&' if urlsplit(place).query else '?'}{urlencode(asked)}"

    async def person(self, *, code: str, nonce: str, verifier: str, iss: str | None = None) -> Person:
        """Who came back with this code; `iss` is whom the answer says it is from.

        Raises `SignInRefused`, or `ProviderUnavailable`.
        """
        metadata = await self._metadata.get()
        if iss != self.issuer and (iss is not None or metadata.authorization_response_iss_parameter_supported):
            raise SignInRefused("the answer is of another provider than the one that was asked (iss)")
        if not _is_sendable(code):
            raise SignInRefused("the code is none that a provider gives")
        tokens = await self._exchange(metadata, code, verifier)
        claims = await self._claims_of(tokens.id_token)
        check_token(claims, self._rules, nonce=nonce, now=self._clock.micros())
        if metadata.userinfo_endpoint and tokens.access_token and lacks(claims, self._rules):
            claims = with_more(claims, await self._more(metadata.userinfo_endpoint, tokens.access_token))
        return person_of(claims, self._rules)

    async def close(self) -> None:
        """Let go of connections."""
        await self._asking.close()

    async def _discover(self) -> Metadata:
        place = f"{self.issuer.removesuffix('/')}/.well-known/openid-configuration"
        answer = await self._asking.ask(place, what="configuration")
        metadata = _success(answer, what="configuration").read(Metadata, what="configuration")
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
            return bool(parts.hostname) and is_trusted(parts) and here
        except ValueError:
            return False

    async def _ask_for_keys(self) -> Keys:
        metadata = await self._metadata.get()
        answer = await self._asking.ask(metadata.jwks_uri, what="keys")
        return Keys(_success(answer, what="keys").read(KeySet, what="keys").keys)

    async def _claims_of(self, token: str) -> dict[str, object]:
        """What a token says; a key that is not known is looked for once more, but not too often."""
        try:
            return (await self._keys.get()).claims_of(token)
        except UnknownKey:
            pass
        try:
            return (await self._keys.get(seconds=KEYS_AGAIN_SECONDS)).claims_of(token)
        except UnknownKey:
            raise SignInRefused("the token is signed with a key that the provider does not list") from None

    async def _exchange(self, metadata: Metadata, code: str, verifier: str) -> Tokens:
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
            headers["authorization"] = _basic(self._client_id, self._client_secret)
        answer = await self._asking.ask(metadata.token_endpoint, what="answer to the code", headers=headers, form=form)
        if answer.status != 200:
            raise _refusal_of(answer)
        return answer.read(Tokens, what="answer to the code")

    async def _more(self, place: str, access_token: str) -> dict[str, Any]:
        if not _is_sendable(access_token):
            raise ProviderUnavailable("the access token of the provider cannot be sent")
        answer = await self._asking.ask(place, what="userinfo", headers={"authorization": f"Bearer {access_token}"})
        return _success(answer, what="userinfo").read(dict[str, Any], what="userinfo")


def _scopes_of(metadata: Metadata) -> tuple[str, ...]:
    return (*SCOPES, GROUPS_SCOPE) if GROUPS_SCOPE in metadata.scopes_supported else SCOPES


def _is_sendable(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _challenge(verifier: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")


def _basic(client_id: str, secret: str) -> str:
    return "Basic " + base64.b64encode(f"{quote_plus(client_id)}:{quote_plus(secret)}".encode()).decode()


def _success(answer: Answer, *, what: str) -> Answer:
    if answer.status != 200:
        raise ProviderUnavailable(f"the {what} of the provider is a {answer.status}")
    return answer


def _refusal_of(answer: Answer) -> SignInRefused | ProviderUnavailable:
    """Why there are no tokens for a code. What the provider says of it is shown only where we know the words."""
    error = answer.read(Refusal, what="answer to the code").error
    if error in THEIR_FAULTS:
        return SignInRefused(f"the provider does not take the code ({error}): it was used, or is too old or another's")
    if error in OUR_FAULTS:
        return ProviderUnavailable(
            f"the provider does not take this server for a client of its own ({error})",
            hint="Whoever runs this server looks at INGOT_OIDC_CLIENT_ID and INGOT_OIDC_CLIENT_SECRET.",
        )
    return ProviderUnavailable(f"the answer to the code of the provider is a {answer.status}")
