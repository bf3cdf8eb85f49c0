"""Signed URLs: a URL that serves as its own credential until it expires, for one method, path and query."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode

from ingot.blobs.errors import SignatureInvalid
from ingot.kernel.clock import MICROS, Clock

PURPOSE: Final = b"ingot: signed addresses, 1"  # Keys derived from the same secret for other purposes differ.
EXPIRES: Final = "expires"
SIGNATURE: Final = "signature"
QUERY_CHARS_MAX: Final = 8192
_SIGNATURE_SEPARATOR = f"&{SIGNATURE}=".encode()


class Signer:
    """Signs URLs with a secret key, and verifies them."""

    def __init__(self, key: bytes, clock: Clock) -> None:
        self._key = hmac.digest(key, PURPOSE, hashlib.sha256)
        self._clock = clock

    def sign(self, method: str, path: str, params: Mapping[str, str], seconds: float) -> str:
        """Return the path with a query that contains the parameters, the expiry and the signature.

        The path must be percent-encoded, as clients send it.
        """
        assert not {EXPIRES, SIGNATURE} & params.keys(), f"{EXPIRES} and {SIGNATURE} are reserved"
        expires = str(self._clock.micros() // MICROS + round(seconds))
        query = urlencode([*sorted(params.items()), (EXPIRES, expires)], quote_via=quote, safe="")
        return f"{path}?{query}&{SIGNATURE}={self._signature_of(method, path, query.encode())}"

    def sign_text(self, purpose: str, text: str) -> str:
        """Return a text without dots, followed by a dot and its signature for a purpose."""
        return f"{text}.{self._text_signature(purpose, text)}"

    def verify_text(self, purpose: str, signed: str) -> str | None:
        """Return the text that `sign_text` signed, or `None` if the signature is not valid."""
        text, _, signature = signed.partition(".")
        is_valid = signature.isascii() and hmac.compare_digest(signature, self._text_signature(purpose, text))
        return text if is_valid else None

    def _text_signature(self, purpose: str, text: str) -> str:
        # A signed URL has two line breaks, so that no signature is valid for both.
        return hmac.new(self._key, f"{purpose}\n{text}".encode(), hashlib.sha256).hexdigest()

    def verify(self, method: str, path: str, query: bytes) -> dict[str, str]:
        """Return the parameters of a signed URL. One for GET is also valid for HEAD. Raises `SignatureInvalid`."""
        signed_query, _, signature = query.rpartition(_SIGNATURE_SEPARATOR)
        if len(query) > QUERY_CHARS_MAX or not signature.isascii():
            raise SignatureInvalid
        if not hmac.compare_digest(signature.decode(), self._signature_of(method, path, signed_query)):
            raise SignatureInvalid
        params = dict(
            parse_qsl(signed_query.decode(), keep_blank_values=True)
        )  # `sign` wrote it, so it is well-formed.
        if int(params.pop(EXPIRES)) <= self._clock.micros() // MICROS:
            raise SignatureInvalid("the signed URL has expired")
        return params

    def _signature_of(self, method: str, path: str, query: bytes) -> str:
        """Sign the exact text of a URL, so that no other spelling of it is valid."""
        method = "GET" if method == "HEAD" else method
        text = b"\n".join([method.encode(), path.encode(), query])  # None of them contains a line break.
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()
