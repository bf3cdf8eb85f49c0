"""Encryption of positions that leave the server: cursors of lists, and event IDs."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

from ingot.kernel.pages import InvalidCursor

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

SEALED_CHARS_MAX: Final = 8192
KEY_CONTEXT: Final = b"ingot: cursors and event IDs, 1"  # Used for no other value that is derived from the key.


class CursorCipher:
    """Encrypts and authenticates positions (AES-SIV). The first key encrypts; all keys decrypt.

    The same position with the same binding has always the same text, so that clients can compare event IDs.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = tuple(keys)

    def seal(self, position: bytes, *, bound_to: Sequence[str]) -> str:
        """Return a text from which only `open` with the same binding can read the position."""
        sealed = self._ciphers[0].encrypt(position, [part.encode() for part in bound_to])
        return _encode(sealed)

    def open(self, text: str, *, bound_to: Sequence[str]) -> bytes:
        """Return the position. Raises `InvalidCursor` for a text that was not sealed with this binding."""
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - slow to import and rarely needed

        if len(text) > SEALED_CHARS_MAX:
            raise InvalidCursor
        try:
            sealed = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, UnicodeError):
            raise InvalidCursor from None
        if _encode(sealed) != text:  # Each position has one spelling.
            raise InvalidCursor
        for cipher in self._ciphers:
            try:
                return cipher.decrypt(sealed, [part.encode() for part in bound_to])
            except InvalidTag:
                continue
        raise InvalidCursor

    @cached_property
    def _ciphers(self) -> tuple[AESSIV, ...]:
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV  # noqa: PLC0415 - see `open`

        return tuple(AESSIV(hmac.digest(key, KEY_CONTEXT, hashlib.sha512)) for key in self._keys)


def _encode(sealed: bytes) -> str:
    return base64.urlsafe_b64encode(sealed).decode().rstrip("=")
