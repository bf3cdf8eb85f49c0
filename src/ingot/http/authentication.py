"""Authentication of requests: find the caller, apply rate limits, check the grant and determine the tenant."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from ingot.blobs.errors import SignatureInvalid
from ingot.http.client_address import ClientAddressResolver
from ingot.http.cookies import BROWSER_COOKIE, SESSION_COOKIE, read_cookie
from ingot.http.csrf import SAFE_METHODS, require_page_request, require_same_origin
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
BURST_SECONDS: Final = 2.0  # The burst of a caller, in seconds of its rate.
FAILURE_RATE: Final = RateLimit(10, 200)  # Failed authentications from one address. Above it, the store is not queried.
# Requests without a credential for expensive routes, from one known browser or from one address.
ANONYMOUS_RATE: Final = RateLimit(2, 60)
ALL_ANONYMOUS_RATE: Final = RateLimit(200, 2000)  # The same from all addresses, because a client can have many.
TENANT_RATE_FACTOR: Final = 4  # The rate of all callers of a tenant, in multiples of the rate of one caller.


def rate_limits_by_class(*, read: float, write: float, wait: float) -> dict[RateClass, RateLimit]:
    """Return the rate limit of one caller for each class of routes, from rates in requests per second."""
    per_second: dict[RateClass, float] = {"read": read, "write": write, "wait": wait}
    return {name: RateLimit(rate, max(1.0, rate * BURST_SECONDS)) for name, rate in per_second.items()}


DEFAULT_RATE_LIMITS: Final = rate_limits_by_class(read=1000, write=2000, wait=1000)
OTHER_TENANT_HINT: Final = "Remove --tenant, INGOT_TENANT or the header Ingot-Tenant."


class RequestAuthenticator:
    """Authenticates requests and checks what their callers may do."""

    def __init__(
        self,
        authenticator: Authenticator,
        tenants: Tenants,
        rate_limiter: RateLimiter,
        *,
        rate_limits: Mapping[RateClass, RateLimit] = DEFAULT_RATE_LIMITS,
        address_resolver: ClientAddressResolver | None = None,
        signer: Signer | None = None,
    ) -> None:
        self._authenticator = authenticator
        self._tenants = tenants
        self._rate_limiter = rate_limiter
        self._rate_limits = rate_limits
        self._address_resolver = address_resolver or ClientAddressResolver()
        self._resolve_address = self._address_resolver.resolve
        self._signer = signer
        # These limiters are separate, so that a flood of addresses cannot evict the buckets of callers.
        self._failure_limiter = RateLimiter()
        self._anonymous_limiter = RateLimiter()
        # Tenant IDs by slug, each with the monotonic time at which the entry expires.
        self._tenant_id_cache: dict[str, tuple[str, float]] = {}
        tenants.on_removed(lambda _: self._tenant_id_cache.clear())

    async def authenticate(
        self,
        route: Route,
        headers: Headers,
        path_params: dict[str, str],
        *,
        request_id: str,
        client: tuple[str, int] | None = None,
        target: tuple[str, str, bytes] = ("", "", b""),
    ) -> Request:
        """Authenticate the sender of a request. `target` is its method, path and query, as they were sent.

        Raises `Unauthorized`, `Forbidden`, `SignatureInvalid`, `TenantNotFound` or `TooManyRequests`.
        """
        caller, tenant, signed_params = ANONYMOUS, "", None
        uncount: Callable[[], None] = _no_op
        if isinstance(route.needs, Signed):
            signed_params = self._verify_signature((route.needs.purpose or target[0], *target[1:]), headers, client)
        elif not isinstance(route.needs, Open):
            caller = await self._find_caller_limited(headers, client)
            if caller.session is not None and route.method not in SAFE_METHODS:
                require_same_origin(headers)
            self._count_request(route, caller)
            _authorize(route, caller)
            tenant = await self._tenant_of(headers, caller)
        elif route.limit_by_address:
            check_origin = require_page_request if route.method in SAFE_METHODS else require_same_origin
            check_origin(headers)
            uncount = self._count_anonymous(headers, client)
        return Request(
            caller=caller,
            tenant=tenant,
            headers=headers,
            path_params=path_params,
            request_id=request_id,
            client=client,
            signed_params=signed_params,
            resolve_address=self._resolve_address,
            uncount=uncount,
        )

    def _count_anonymous(self, headers: Headers, client: tuple[str, int] | None) -> Callable[[], None]:
        """Count a request without a credential, and return a function that takes this back.

        A browser in which somebody signed in before has a limit of its own, which other clients cannot use up. Raises
        `TooManyRequests`.
        """
        cookie = read_cookie(headers, BROWSER_COOKIE)
        browser = None if cookie is None or self._signer is None else self._signer.verify_text(BROWSER_COOKIE, cookie)
        if browser is not None:
            buckets = [((browser, "browser"), ANONYMOUS_RATE)]
        else:
            address = self._address_resolver.rate_limit_key(client, headers)
            buckets = [((address, "open"), ANONYMOUS_RATE), (("", "all"), ALL_ANONYMOUS_RATE)]
        for bucket, limit in buckets:
            self._anonymous_limiter.take(bucket, limit)

        def uncount() -> None:
            for bucket, _ in buckets:
                self._anonymous_limiter.refund(bucket)

        return uncount

    async def reauthenticate(self, route: Route, request: Request) -> None:
        """Check that the caller of an open request is still allowed to make it, and that the tenant still exists.

        The check does not count against a rate limit. Raises `Unauthorized`, `Forbidden` or `TenantNotFound`.
        """
        if not isinstance(route.needs, Open | Signed):
            caller = await self._find_caller(request.headers, tenant=request.tenant)
            _authorize(route, caller)
            if caller.tenant is None:
                await self._tenant_id_of_slug(request.tenant)

    def rate_limit_key_of(self, request: Request) -> str:
        """Return the client address of a request in the form in which rate limits count it."""
        return self._address_resolver.rate_limit_key(request.client, request.headers)

    def _verify_signature(
        self, target: tuple[str, str, bytes], headers: Headers, client: tuple[str, int] | None
    ) -> dict[str, str]:
        """Return the parameters of a signed URL. Invalid signatures count as failures of the client address.

        A valid signature is accepted however many failures the address has, which other clients may share. Raises
        `SignatureInvalid` or `TooManyFailures`.
        """
        try:
            if self._signer is None:
                raise SignatureInvalid
            return self._signer.verify(*target)
        except SignatureInvalid:
            bucket = self._address_resolver.rate_limit_key(client, headers), "failures"
            self._failure_limiter.take(bucket, FAILURE_RATE, TooManyFailures)
            raise

    async def _find_caller_limited(self, headers: Headers, client: tuple[str, int] | None) -> Caller:
        """Find the caller. Failed lookups in the store count against the client address.

        Raises `Unauthorized` or `TooManyFailures`.
        """
        charged: list[tuple[str, str]] = []

        def before_lookup() -> None:
            bucket = self._address_resolver.rate_limit_key(client, headers), "failures"
            self._failure_limiter.take(bucket, FAILURE_RATE, TooManyFailures)
            charged.append(bucket)

        try:
            return await self._find_caller(headers, before_lookup)
        except Unauthorized:
            charged.clear()  # A failure is not refunded.
            raise
        finally:
            for bucket in charged:
                self._failure_limiter.refund(bucket)

    async def _find_caller(
        self, headers: Headers, before_lookup: Callable[[], None] = lambda: None, *, tenant: str | None = None
    ) -> Caller:
        """Find the caller by the credential in the headers. Calls `before_lookup` before the store is queried.

        A person acts in `tenant`, or without it in the tenant that the headers name.
        """
        worker_id, secret = headers.get("x-worker-id"), headers.get("x-worker-secret")
        if worker_id is not None and secret is not None:
            if headers.has("authorization"):
                raise Unauthorized(
                    "the request has two credentials, a token and a worker secret", hint="Send only one."
                )
            return await self._authenticator.authenticate_worker(worker_id, secret, before_lookup)
        authorization = headers.get("authorization")
        if authorization is None:
            session = None if _sent_credential_headers(headers) else read_cookie(headers, SESSION_COOKIE)
            if session is None:
                raise _missing_credential_error(headers)
            return await self._authenticator.authenticate_session(
                session, tenant or headers.get("ingot-tenant"), before_lookup
            )
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthorized(
                "the Authorization header has no bearer token",
                hint="Put `Bearer` before the token: `Authorization: Bearer ingot_…`.",
            )
        return await self._authenticator.authenticate_token(token.strip(), before_lookup)

    def _count_request(self, route: Route, caller: Caller) -> None:
        """Count a request against the rates of its caller and its tenant. Raises `TooManyRequests`."""
        limit = self._rate_limits[route.rate]
        caller_limit = limit
        if caller.limits.rate is not None:
            caller_limit = RateLimit(caller.limits.rate, caller.limits.effective_burst)
        self._rate_limiter.take((caller.principal, route.rate), caller_limit)
        if caller.tenant is not None:
            tenant_limit = RateLimit(limit.per_second * TENANT_RATE_FACTOR, limit.burst * TENANT_RATE_FACTOR)
            self._rate_limiter.take((caller.tenant, route.rate), tenant_limit)

    async def _tenant_of(self, headers: Headers, caller: Caller) -> str:
        """Return the ID of the tenant of a request: the caller's own, or the one that an operator names."""
        if caller.kind == "user" and caller.tenant is not None:
            return caller.tenant
        slug = headers.get("ingot-tenant")
        if slug is not None and caller.kind == "worker" and caller.tenant is None:
            raise Forbidden("shared workers cannot choose a tenant", hint="Remove the Ingot-Tenant header.")
        if slug is None and caller.tenant is not None:
            return caller.tenant
        try:
            tenant = await self._tenant_id_of_slug(slug or DEFAULT_SLUG)
        except TenantNotFound:
            if caller.tenant is None:
                raise
            tenant = ""
        if caller.tenant not in (None, tenant):
            raise Forbidden("the credential belongs to another tenant", hint=OTHER_TENANT_HINT)
        return tenant

    async def _tenant_id_of_slug(self, slug: str) -> str:
        tenant_id, expires_at = self._tenant_id_cache.get(slug, ("", 0.0))
        if expires_at < time.monotonic():
            tenant_id = (await self._tenants.get(slug)).id
            self._tenant_id_cache[slug] = tenant_id, time.monotonic() + CREDENTIAL_CACHE_SECONDS
        return tenant_id


def _no_op() -> None:
    """Take nothing back."""


def _sent_credential_headers(headers: Headers) -> list[str]:
    return [name for name in CREDENTIAL_HEADERS if headers.has(name.lower())]


def _missing_credential_error(headers: Headers) -> Unauthorized:
    """Explain why these headers identify no caller."""
    sent_names = _sent_credential_headers(headers)
    for name in sent_names:
        if headers.get(name.lower()) is None:
            return Unauthorized(f"the header {name} was sent twice", hint="Send it once.")
    if sent_names:
        (missing,) = {"X-Worker-ID", "X-Worker-Secret"}.difference(sent_names)
        return Unauthorized(f"{sent_names[0]} was sent without {missing}", hint="Send both headers.")
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
            f"worker credentials have no grant for {route.needs.action}",
            hint=f"Use a token with a grant for {route.needs.action}. Workers can only claim, renew and settle.",
        )
    raise caller.missing_grant_error(route.needs.action)
