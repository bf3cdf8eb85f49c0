"""What those outside do wrong."""

from __future__ import annotations

from ingot.kernel.errors import IngotError


class ProviderUnavailable(IngotError):
    """The provider that people sign in with does not answer as it should."""

    code = "provider_unavailable"
    status = 503
    hint = "Try again in a moment; when it stays, whoever runs this server looks at INGOT_OIDC_ISSUER and the provider."
