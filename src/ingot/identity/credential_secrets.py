"""Tokens and secrets: shown once, stored as a hash, and checked for their form before anything is looked up."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import zlib
from typing import Final
from uuid import UUID

TOKEN_PREFIX: Final = "ingot_"
WORKER_PREFIX: Final = "ingotw_"
SESSION_PREFIX: Final = "ingots_"
LOGIN_PREFIX: Final = "ingotl_"  # The secret of a login is in a cookie of the browser, or in a sign-in link.
SECRET_BYTES: Final = 32
BASE62_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ID_CHARS: Final = 22  # 128 bits
SECRET_CHARS: Final = 43  # 256 bits
CHECKSUM_CHARS: Final = 6  # 32 bits
ENDING_CHARS: Final = 4


def new_token(id: str) -> str:
    """Create the text of a token with this ID."""
    return _with_checksum(TOKEN_PREFIX + _encode_base62(UUID(id).int, ID_CHARS) + _new_secret())


def new_secret(prefix: str) -> str:
    """Create a secret. The prefix shows its purpose: a worker credential, a session or a login."""
    return _with_checksum(prefix + _new_secret())


def parse_token_id(token: str) -> str | None:
    """Return the ID in the text of a token, or `None` if the text is not a token."""
    if not is_well_formed(token, TOKEN_PREFIX, ID_CHARS + SECRET_CHARS):
        return None
    number = _decode_base62(token[len(TOKEN_PREFIX) :][:ID_CHARS])
    return str(UUID(int=number)) if number < 2**128 else None


def is_well_formed(text: str, prefix: str, chars: int = SECRET_CHARS) -> bool:
    """Return whether the text has the form of a secret with this prefix, including a correct checksum."""
    if not text.startswith(prefix) or len(text) != len(prefix) + chars + CHECKSUM_CHARS:
        return False
    if not text.isascii() or not text[len(prefix) :].isalnum():
        return False
    return _with_checksum(text[:-CHECKSUM_CHARS]) == text


def derive_secret(secret: str, purpose: str) -> str:
    """Derive another secret for a purpose. Only holders of `secret` can compute it, so it is not stored."""
    derived = hmac.digest(secret.encode(), purpose.encode(), "sha256")
    return base64.urlsafe_b64encode(derived).rstrip(b"=").decode()


def digest(secret: str) -> bytes:
    """Return the hash under which a token or secret is stored. It need not be slow: secrets have 256 random bits."""
    return hashlib.sha256(secret.encode()).digest()


def matches(secret: str, stored_digest: bytes) -> bool:
    """Return whether the secret has this digest."""
    return hmac.compare_digest(digest(secret), stored_digest)


def constant_time_equal(left: str, right: str) -> bool:
    """Return whether two secrets are equal. The time that this takes does not depend on where they differ."""
    return hmac.compare_digest(left.encode(), right.encode())


def ending(secret: str) -> str:
    """Return the last characters, by which people recognize a secret in a list."""
    return secret[-ENDING_CHARS:]


def _new_secret() -> str:
    return _encode_base62(int.from_bytes(secrets.token_bytes(SECRET_BYTES)), SECRET_CHARS)


def _with_checksum(text: str) -> str:
    return text + _encode_base62(zlib.crc32(text.encode()), CHECKSUM_CHARS)


def _encode_base62(number: int, chars: int) -> str:
    digits = []
    for _ in range(chars):
        number, digit = divmod(number, len(BASE62_ALPHABET))
        digits.append(BASE62_ALPHABET[digit])
    return "".join(reversed(digits))


def _decode_base62(text: str) -> int:
    number = 0
    for digit in text:
        number = number * len(BASE62_ALPHABET) + BASE62_ALPHABET.index(digit)
    return number
