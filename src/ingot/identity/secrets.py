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
LOGIN_PREFIX: Final = "ingotl_"  # Of who has set out to sign in.
SECRET_BYTES: Final = 32
LETTERS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ID_CHARS: Final = 22  # 128 bits
SECRET_CHARS: Final = 43  # 256 bits
SUM_CHARS: Final = 6  # 32 bits
SHOWN_CHARS: Final = 4


def new_token(id: str) -> str:
    """The text of a token with this id."""
    return _summed(TOKEN_PREFIX + _write(UUID(id).int, ID_CHARS) + _new_secret())


def new_worker_secret() -> str:
    """The secret of a worker credential."""
    return _summed(WORKER_PREFIX + _new_secret())


def new_session_secret() -> str:
    """The secret of a session, which its browser keeps."""
    return _summed(SESSION_PREFIX + _new_secret())


def new_login_secret() -> str:
    """The secret of who has set out to sign in, which their browser keeps, or a link holds."""
    return _summed(LOGIN_PREFIX + _new_secret())


def id_of_token(token: str) -> str | None:
    """The id in the text of a token, or `None` when nobody can have made it."""
    if not _is_whole(token, TOKEN_PREFIX, ID_CHARS + SECRET_CHARS):
        return None
    number = _read(token[len(TOKEN_PREFIX) :][:ID_CHARS])
    return str(UUID(int=number)) if number < 2**128 else None


def is_worker_secret(secret: str) -> bool:
    """Whether somebody can have made this as the secret of a worker."""
    return _is_whole(secret, WORKER_PREFIX, SECRET_CHARS)


def is_session_secret(secret: str) -> bool:
    """Whether somebody can have made this as the secret of a session."""
    return _is_whole(secret, SESSION_PREFIX, SECRET_CHARS)


def is_login_secret(secret: str) -> bool:
    """Whether somebody can have made this for who sets out to sign in."""
    return _is_whole(secret, LOGIN_PREFIX, SECRET_CHARS)


def derived(secret: str, purpose: str) -> str:
    """Another secret that only who has this one can know, so that it need not be kept."""
    made = hmac.digest(secret.encode(), purpose.encode(), "sha256")
    return base64.urlsafe_b64encode(made).rstrip(b"=").decode()


def digest(secret: str) -> bytes:
    """What is stored of a token or secret. It is random enough that nobody finds it by trying."""
    return hashlib.sha256(secret.encode()).digest()


def matches(secret: str, stored: bytes) -> bool:
    """Whether this is the secret of which that was stored."""
    return hmac.compare_digest(digest(secret), stored)


def same(one: str, other: str) -> bool:
    """Whether two secrets are the same, in a time that tells nothing."""
    return hmac.compare_digest(one.encode(), other.encode())


def ending(secret: str) -> str:
    """The last letters, by which people recognize it in a list."""
    return secret[-SHOWN_CHARS:]


def _new_secret() -> str:
    return _write(int.from_bytes(secrets.token_bytes(SECRET_BYTES)), SECRET_CHARS)


def _summed(text: str) -> str:
    return text + _write(zlib.crc32(text.encode()), SUM_CHARS)


def _is_whole(text: str, prefix: str, chars: int) -> bool:
    """Whether the text has its form and its sum."""
    if not text.startswith(prefix) or len(text) != len(prefix) + chars + SUM_CHARS:
        return False
    if not text.isascii() or not text[len(prefix) :].isalnum():
        return False
    return _summed(text[:-SUM_CHARS]) == text


def _write(number: int, chars: int) -> str:
    found = []
    for _ in range(chars):
        number, letter = divmod(number, len(LETTERS))
        found.append(LETTERS[letter])
    return "".join(reversed(found))


def _read(text: str) -> int:
    number = 0
    for letter in text:
        number = number * len(LETTERS) + LETTERS.index(letter)
    return number
