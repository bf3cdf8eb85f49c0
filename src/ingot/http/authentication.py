"""The gate: who calls, in which tenant, and whether they may, before anything else is looked at."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from ingot.blobs.errors import SignatureInvalid
from ingot.http.client_address import ClientAddressResolver
from ingot.http.cookies import SESSION_COOKIE, read_cookie
from ingot.http.csrf import SAFE_METHODS, require_same_origin
from ingot.http.rate_limits import RateLimit, RateLimiter, TooManyFailures
from ingot.http.request import Headers, Request
from ingot.http.routes import Granted, Open, RateClass, Route, Signed
from ingot.http.signing import Signer
from ingot.identity.authenticator import CREDENTIAL_CACHE_SECONDS, Authenticator
from ingot.identity.credentials import Caller, Forbidden, Unauthorized
from ingot.identity.model import TenantNotFound
from ingot.identity.roles import NO_TENANT, no_tenant_error
from ingot.identity.tenants import DEFAULT_SLUG, Tenants

CREDENTIAL_HEADERS: Final = ("Authorization", "X-Worker-ID", "X-Worker-Secret")
ANONYMOUS: Final = Caller(id="", kind="token", tenant="", grants=())
BURST_SECONDS: Final = 2.0  # Who made no requests for so long may make theirs at once.
FAILURE_RATE: Final = RateLimit(
    10, 200
)  # Credentials that do not hold, from one address, before the store is asked no more.
ANONYMOUS_RATE: Final = RateLimit(2, 60)  # What anybody may do from one address, where it costs us something.
ALL_ANONYMOUS_RATE: Final = RateLimit(200, 2000)  # The same from all addresses together: somebody may have very many.
TENANT_RATE_FACTOR: Final = 4  # All callers of a tenant together may make so many times the requests of one.


def rate_limits_by_class(*, read: float, write: float, wait: float) -> dict[RateClass, RateLimit]:
    """What a caller may do in each class of routes, from so many requests in a second."""
    per_second: dict[RateClass, float] = {"read": read, "write": write, "wait": wait}
    return {name: RateLimit(rate, max(1.0, rate * BURST_SECONDS)) for name, rate in per_second.items()}


DEFAULT_RATE_LIMITS: Final = rate_limits_by_class(read=1000, write=2000, wait=1000)


class RequestAuthenticator:
    """Lets callers in."""

    def __init__(
        self,
        access: Authenticator,
        tenants: Tenants,
        rates: RateLimiter,
        *,
        rate_limits: Mapping[RateClass, RateLimit] = DEFAULT_RATE_LIMITS,
        address_resolver: ClientAddressResolver | None = None,
        signer: Signer | None = None,
    ) -> None:
        self._authenticator = access
        self._tenants = tenants
        self._rate_limiter = rates
        self._rate_limits = rate_limits
        self._address_resolver = address_resolver or ClientAddressResolver()
        self._resolve_address = self._address_resolver.resolve
        self._signer = signer
        self._failure_limiter = (
            RateLimiter()
        )  # Apart from those of callers, whom a flood of addresses must not push out.
        self._anonymous_limiter = RateLimiter()
        self._tenant_id_cache: dict[
            str, tuple[str, float]
        ] = {}  # The tenants that operators named, and until when that holds.
        tenants.on_removed(lambda _: self._tenant_id_cache.clear())

    async def authenticate(
        self,
        route: Route,
        headers: Headers,
        path: dict[str, str],
        *,
        request_id: str,
        client: tuple[str, int] | None = None,
        target: tuple[str, str, bytes] = ("", "", b""),
    ) -> Request:
        """The call that a request makes. `target` is what it asks for: its method, path and query as they were sent.

        Raises `Unauthorized`, `Forbidden`, `SignatureInvalid` or `TooManyRequests`.
        """
        caller, tenant, signed = ANONYMOUS, "", None
        if isinstance(route.needs, Signed):
            signed = self._verify_signature((route.needs.purpose or target[0], *target[1:]), headers, client)
        elif not isinstance(route.needs, Open):
            caller = await self._find_caller_limited(headers, client)
            if caller.session is not None and route.method not in SAFE_METHODS:
                require_same_origin(headers)
            self._count_request(route, caller)
            _authorize(route, caller)
            tenant = await self._tenant_of(headers, caller)
        elif route.limit_by_address:
            self._anonymous_limiter.take(
                (self._address_resolver.rate_limit_key(client, headers), "open"), ANONYMOUS_RATE
            )
            self._anonymous_limiter.take(("", "all"), ALL_ANONYMOUS_RATE)
        return Request(
            caller=caller,
            tenant=tenant,
            headers=headers,
            path_params=path,
            request_id=request_id,
            client=client,
            signed_params=signed,
            resolve_address=self._resolve_address,
        )

    async def reauthenticate(self, route: Route, call: Request) -> None:
        """Whether a call that goes on would still be let in, and its tenant is still there; counts nothing.

        Raises `Unauthorized`, `Forbidden` or `TenantNotFound`.
        """
        if not isinstance(route.needs, Open | Signed):
            caller = await self._find_caller(call.headers, tenant=call.tenant)
            _authorize(route, caller)
            if caller.tenant is None:
                await self._tenant_id_of_slug(call.tenant)

    def rate_limit_key_of(self, call: Request) -> str:
        """From where a call comes."""
        return self._address_resolver.rate_limit_key(call.client, call.headers)

    def _verify_signature(
        self, target: tuple[str, str, bytes], headers: Headers, client: tuple[str, int] | None
    ) -> dict[str, str]:
        """The parameters of a signed address, unless too many from there were none. One that does not hold counts."""
        if self._signer is None:
            raise SignatureInvalid
        name = self._address_resolver.rate_limit_key(client, headers), "failures"
        self._failure_limiter.take(name, FAILURE_RATE, TooManyFailures)
        signed = self._signer.verify(*target)
        self._failure_limiter.refund(name)
        return signed

    async def _find_caller_limited(self, headers: Headers, client: tuple[str, int] | None) -> Caller:
        """The caller, unless too many from there were none. What the store is asked for in vain stays counted."""
        asked: list[tuple[str, str]] = []

        def asking() -> None:
            name = self._address_resolver.rate_limit_key(client, headers), "failures"
            self._failure_limiter.take(name, FAILURE_RATE, TooManyFailures)
            asked.append(name)

        try:
            return await self._find_caller(headers, asking)
        except Unauthorized:
            asked.clear()  # It stays counted.
            raise
        finally:
            for name in asked:
                self._failure_limiter.refund(name)

    async def _find_caller(
        self, headers: Headers, asking: Callable[[], None] = lambda: None, *, tenant: str | None = None
    ) -> Caller:
        """Who sends these headers. A person is looked for in the tenant that they name, or in the one that is told."""
        worker_id, secret = headers.get("x-worker-id"), headers.get("x-worker-secret")
        if worker_id is not None and secret is not None:
            if headers.has("authorization"):
                raise Unauthorized("the request has two credentials, a token and a worker's", hint="Send one of them.")
            return await self._authenticator.authenticate_worker(worker_id, secret, asking)
        authorization = headers.get("authorization")
        if authorization is None:
            session = None if _sent_credential_headers(headers) else read_cookie(headers, SESSION_COOKIE)
            if session is None:
                raise _missing_credential_error(headers)
            return await self._authenticator.authenticate_session(
                session, tenant or headers.get("ingot-tenant"), asking
            )
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthorized(
                "the header Authorization holds no bearer token",
                hint="When it is a token, write Bearer before it: `Authorization: Bearer ingot_…`.",
            )
        return await self._authenticator.authenticate_token(token.strip(), asking)

    def _count_request(self, route: Route, caller: Caller) -> None:
        rate = self._rate_limits[route.rate]
        own = rate
        if caller.limits.rate is not None:
            own = RateLimit(caller.limits.rate, caller.limits.burst or max(1.0, caller.limits.rate))
        self._rate_limiter.take((caller.principal, route.rate), own)
        if caller.tenant is not None:
            shared = RateLimit(rate.per_second * TENANT_RATE_FACTOR, rate.burst * TENANT_RATE_FACTOR)
            self._rate_limiter.take((caller.tenant, route.rate), shared)

    async def _tenant_of(self, headers: Headers, caller: Caller) -> str:
        """The tenant that the call is made in: the caller's own, or the one an operator names."""
        if caller.kind == "user" and caller.tenant is not None:
            return caller.tenant
        named = headers.get("ingot-tenant")
        if named is not None and caller.kind == "worker" and caller.tenant is None:
            raise Forbidden("a shared worker serves all tenants", hint="Leave out the header Ingot-Tenant.")
        if named is None and caller.tenant is not None:
            return caller.tenant
        try:
            tenant = await self._tenant_id_of_slug(named or DEFAULT_SLUG)
        except TenantNotFound:
            if caller.tenant is None:
                raise
            tenant = ""
        if caller.tenant not in (None, tenant):
            raise Forbidden("the credential is for another tenant", hint="Leave out the header Ingot-Tenant.")
        return tenant

    async def _tenant_id_of_slug(self, slug: str) -> str:
        known, until = self._tenant_id_cache.get(slug, ("", 0.0))
        if until < time.monotonic():
            known = (await self._tenants.get(slug)).id
            self._tenant_id_cache[slug] = known, time.monotonic() + CREDENTIAL_CACHE_SECONDS
        return known


def _sent_credential_headers(headers: Headers) -> list[str]:
    return [name for name in CREDENTIAL_HEADERS if headers.has(name.lower())]


def _missing_credential_error(headers: Headers) -> Unauthorized:
    """Why nobody can be told from these headers."""
    sent = _sent_credential_headers(headers)
    for name in sent:
        if headers.get(name.lower()) is None:
            return Unauthorized(f"the header {name} was sent twice", hint="Send it once.")
    if sent:
        (missing,) = {"X-Worker-ID", "X-Worker-Secret"}.difference(sent)
        return Unauthorized(f"{sent[0]} was sent without {missing}", hint="A worker sends both of them.")
    return Unauthorized("the request has no credential")


def _authorize(route: Route, caller: Caller) -> None:
    if not isinstance(route.needs, Granted) or route.needs.is_met(
        caller.may if route.needs.is_tenant_wide else caller.has_grant_for
    ):
        return
    if caller.kind == "user" and caller.tenant == NO_TENANT:
        raise no_tenant_error(caller)
    if caller.kind == "worker":
        raise Forbidden(
            f"the credential of a worker has no grant for {route.needs.action}",
            hint=f"Workers claim, renew and settle; for the rest use a token with a grant for {route.needs.action}.",
        )
    raise caller.missing_grant_error(route.needs.action)
