"""The keys of a provider, and the tokens that it signed with one of them."""

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
# Only such as nobody can sign with who knows the public keys.
KEY_TYPE_OF_ALGORITHM: Final = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    **dict.fromkeys(("EdDSA", "Ed25519"), "OKP"),
}
# A token that brings its key, or names the place of it, proves nothing; and of what is critical we know nothing.
REFUSED_HEADERS: Final = frozenset({"jku", "jwk", "x5u", "x5c", "crit", "b64"})


class JsonWebKeySet(msgspec.Struct):
    """What a provider answers at its jwks_uri."""

    keys: list[dict[str, Any]]


class UnknownKey(Exception):
    """A token is signed with a key that is not among these: the provider may have newer ones."""


class _JwsRegistry(JWSRegistry):
    """`EdDSA` is the older name of `Ed25519`."""

    def get_alg(self, name: str) -> Any:
        return super().get_alg("Ed25519" if name == "EdDSA" else name)


_JWS_REGISTRY: Final = _JwsRegistry(algorithms=[*KEY_TYPE_OF_ALGORITHM], strict_check_header=False)


class SigningKeys:
    """The keys that a provider signs with; those that we cannot use are passed over."""

    def __init__(self, listed: Iterable[dict[str, Any]]) -> None:
        self._keys = [key for one in [*listed][:KEYS_MAX] if (key := _import_key(one)) is not None]

    def verified_claims(self, token: str) -> dict[str, object]:
        """What a token says, if one of these keys signed it. Raises `SignInRefused`, or `UnknownKey`."""
        try:
            signed = extract_compact(token.encode(), registry=_JWS_REGISTRY)
        except (JoseError, ValueError, TypeError, RecursionError):
            raise SignInRefused("the provider sent no signed token") from None
        header = _check_header(signed)
        if not any(_is_signed_with(signed, key) for key in self._candidate_keys(header)):
            raise SignInRefused("the signature of the token is wrong")
        try:
            return msgspec.json.decode(signed.payload or b"", type=dict[str, object])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise SignInRefused("the token says nothing that can be read") from None

    def _candidate_keys(self, header: dict[str, Any]) -> list[SigningKey]:
        """The keys that may have signed: the one that is named, or the only one there is."""
        algorithm, kid = header["alg"], header.get("kid")
        fitting = [
            key
            for key in self._keys
            if key.key_type == KEY_TYPE_OF_ALGORITHM[algorithm] and key.get("alg") in (None, algorithm)
        ]
        if kid is not None:
            fitting = [key for key in fitting if key.get("kid") == kid]
        elif len(fitting) > 1:
            raise SignInRefused("the token does not say which key it is signed with")
        if not fitting:
            raise UnknownKey
        return fitting


def _import_key(listed: dict[str, Any]) -> SigningKey | None:
    kind = KEY_TYPES.get(str(listed.get("kty")))
    if kind is None or listed.get("use", "sig") != "sig":
        return None
    try:
        key = kind.import_key(listed)
        bits = key.public_key.key_size if isinstance(key, RSAKey) else RSA_BITS_MIN
    except Exception:  # Whatever is wrong with it, the others may be right.
        return None
    return key if bits >= RSA_BITS_MIN else None


def _check_header(signed: CompactSignature) -> dict[str, Any]:
    header = signed.headers()
    if not isinstance(header.get("alg"), str) or header["alg"] not in KEY_TYPE_OF_ALGORITHM:
        raise SignInRefused("the token is not signed in a way that proves who made it (alg)")
    if refused := REFUSED_HEADERS & header.keys():
        raise SignInRefused(f"the header of the token has {', '.join(sorted(refused))}, which is not accepted")
    return header


def _is_signed_with(signed: CompactSignature, key: SigningKey) -> bool:
    try:
        return validate_compact(signed, key, registry=_JWS_REGISTRY)
    except (JoseError, ValueError, TypeError):
        return False
