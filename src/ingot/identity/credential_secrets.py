"""The texts that prove who somebody is: shown once, stored as a hash, recognized before anything is looked up."""

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
LOGIN_PREFIX: Final = "ingotl_"  # Of who has set out to sign in; their browser keeps it, or a link holds it.
SECRET_BYTES: Final = 32
BASE62_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ID_CHARS: Final = 22  # 128 bits
SECRET_CHARS: Final = 43  # 256 bits
CHECKSUM_CHARS: Final = 6  # 32 bits
ENDING_CHARS: Final = 4


def new_token(id: str) -> str:
    """The text of a token with this id."""
    return _with_checksum(TOKEN_PREFIX + _encode_base62(UUID(id).int, ID_CHARS) + _new_secret())


def new_secret(prefix: str) -> str:
    """The secret of a worker credential, of a session, or of a sign-in that was begun, by its prefix."""
    return _with_checksum(prefix + _new_secret())


def parse_token_id(token: str) -> str | None:
    """The id in the text of a token, or `None` when nobody can have made it."""
    if not is_well_formed(token, TOKEN_PREFIX, ID_CHARS + SECRET_CHARS):
        return None
    number = _decode_base62(token[len(TOKEN_PREFIX) :][:ID_CHARS])
    return str(UUID(int=number)) if number < 2**128 else None


def is_well_formed(text: str, prefix: str, chars: int = SECRET_CHARS) -> bool:
    """Whether the text has the form of a secret with this prefix, and its sum: then we may have made it."""
    if not text.startswith(prefix) or len(text) != len(prefix) + chars + CHECKSUM_CHARS:
        return False
    if not text.isascii() or not text[len(prefix) :].isalnum():
        return False
    return _with_checksum(text[:-CHECKSUM_CHARS]) == text


def derive_secret(secret: str, purpose: str) -> str:
    """Another secret that only who has this one can know, so that it need not be kept."""
    made = hmac.digest(secret.encode(), purpose.encode(), "sha256")
    return base64.urlsafe_b64encode(made).rstrip(b"=").decode()


def digest(secret: str) -> bytes:
    """What is stored of a token or secret. It is random enough that nobody finds it by trying."""
    return hashlib.sha256(secret.encode()).digest()


def matches(secret: str, stored: bytes) -> bool:
    """Whether this is the secret of which that was stored."""
    return hmac.compare_digest(digest(secret), stored)


def constant_time_equal(one: str, other: str) -> bool:
    """Whether two secrets are the same, in a time that tells nothing."""
    return hmac.compare_digest(one.encode(), other.encode())


def ending(secret: str) -> str:
    """The last letters, by which people recognize it in a list."""
    return secret[-ENDING_CHARS:]


def _new_secret() -> str:
    return _encode_base62(int.from_bytes(secrets.token_bytes(SECRET_BYTES)), SECRET_CHARS)


def _with_checksum(text: str) -> str:
    return text + _encode_base62(zlib.crc32(text.encode()), CHECKSUM_CHARS)


def _encode_base62(number: int, chars: int) -> str:
    found = []
    for _ in range(chars):
        number, letter = divmod(number, len(BASE62_ALPHABET))
        found.append(BASE62_ALPHABET[letter])
    return "".join(reversed(found))


def _decode_base62(text: str) -> int:
    number = 0
    for letter in text:
        number = number * len(BASE62_ALPHABET) + BASE62_ALPHABET.index(letter)
    return number
