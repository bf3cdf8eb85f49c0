"""The signing keys of a provider, and the verification of tokens with them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey
from joserfc.jws import CompactSignature, JWSRegistry, extract_compact, validate_compact

from ingot.identity.people import SignInRefused

SigningKey = RSAKey | ECKey | OKPKey

KEYS_MAX: Final = 100
RSA_BITS_MIN: Final = 2048
KEY_TYPES: Final[dict[str, type[SigningKey]]] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}
# Only asymmetric algorithms: with others, everyone who can verify a token can also sign one.
KEY_TYPE_OF_ALGORITHM: Final = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    **dict.fromkeys(("EdDSA", "Ed25519"), "OKP"),
}
# A token that contains or locates its own key proves nothing, and we support no critical extensions.
REFUSED_HEADERS: Final = frozenset({"jku", "jwk", "x5u", "x5c", "crit", "b64"})


class JsonWebKeySet(msgspec.Struct):
    """The response of a provider at its `jwks_uri`."""

    keys: list[dict[str, Any]]


class UnknownKey(Exception):
    """A token is signed with a key that is not in this set. The provider may have added it since."""


class _JwsRegistry(JWSRegistry):
    """The algorithms that we accept. `EdDSA` is the older name of `Ed25519`."""

    def get_alg(self, name: str) -> Any:
        return super().get_alg("Ed25519" if name == "EdDSA" else name)


_JWS_REGISTRY: Final = _JwsRegistry(algorithms=[*KEY_TYPE_OF_ALGORITHM], strict_check_header=False)


class SigningKeys:
    """The signing keys of a provider. Keys that cannot be used are skipped."""

    def __init__(self, jwks: Iterable[dict[str, Any]]) -> None:
        self._keys = [key for jwk in [*jwks][:KEYS_MAX] if (key := _import_key(jwk)) is not None]

    def verified_claims(self, token: str) -> dict[str, object]:
        """Return the claims of a token that one of these keys signed. Raises `SignInRefused` or `UnknownKey`."""
        try:
            signed = extract_compact(token.encode(), registry=_JWS_REGISTRY)
        except (JoseError, ValueError, TypeError, RecursionError):
            raise SignInRefused("the provider did not send a signed ID token") from None
        header = _check_header(signed)
        if not any(_is_signed_with(signed, key) for key in self._candidate_keys(header)):
            raise SignInRefused("the signature of the ID token is not valid")
        try:
            return msgspec.json.decode(signed.payload or b"", type=dict[str, object])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise SignInRefused("the claims of the ID token are not a JSON object") from None

    def _candidate_keys(self, header: dict[str, Any]) -> list[SigningKey]:
        """Return the keys that may have signed the token: those with its key ID, or else the only suitable one."""
        algorithm, kid = header["alg"], header.get("kid")
        candidates = [
            key
            for key in self._keys
            if key.key_type == KEY_TYPE_OF_ALGORITHM[algorithm] and key.get("alg") in (None, algorithm)
        ]
        if kid is not None:
            candidates = [key for key in candidates if key.get("kid") == kid]
        elif len(candidates) > 1:
            raise SignInRefused("the ID token does not name its signing key (kid), and the provider has several")
        if not candidates:
            raise UnknownKey
        return candidates


def _import_key(jwk: dict[str, Any]) -> SigningKey | None:
    key_type = KEY_TYPES.get(str(jwk.get("kty")))
    if key_type is None or jwk.get("use", "sig") != "sig":
        return None
    try:
        key = key_type.import_key(jwk)
        bits = key.public_key.key_size if isinstance(key, RSAKey) else RSA_BITS_MIN
    except Exception:  # A key that cannot be imported must not affect the others.
        return None
    return key if bits >= RSA_BITS_MIN else None


def _check_header(signed: CompactSignature) -> dict[str, Any]:
    header = signed.headers()
    if not isinstance(header.get("alg"), str) or header["alg"] not in KEY_TYPE_OF_ALGORITHM:
        raise SignInRefused("the ID token is not signed with an accepted algorithm (alg)")
    if refused := REFUSED_HEADERS & header.keys():
        raise SignInRefused(f"the header of the ID token contains {', '.join(sorted(refused))}, which is not accepted")
    return header


def _is_signed_with(signed: CompactSignature, key: SigningKey) -> bool:
    try:
        return validate_compact(signed, key, registry=_JWS_REGISTRY)
    except (JoseError, ValueError, TypeError):
        return False
