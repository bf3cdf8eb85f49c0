"""Errors of other services."""

from __future__ import annotations

from ingot.kernel.errors import IngotError


class ProviderUnavailable(IngotError):
    """The identity provider is not reachable, or its response cannot be used."""

    code = "provider_unavailable"
    status = 503
    hint = (
        "Try again in a moment. If the error persists, the operator of this server has to check INGOT_OIDC_ISSUER and "
        "the provider."
    )
