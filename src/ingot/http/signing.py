"""Addresses that are their own credential: signed by us, good for a while, and only as they were given."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode

from ingot.blobs.errors import SignatureInvalid
from ingot.kernel.clock import MICROS, Clock

PURPOSE: Final = b"ingot: signed addresses, 1"  # The same key may serve other purposes.
EXPIRES: Final = "expires"
SIGNATURE: Final = "signature"
QUERY_CHARS_MAX: Final = 8192
_SIGNATURE_SEPARATOR = f"&{SIGNATURE}=".encode()


class Signer:
    """Signs addresses with a key that nobody else knows, and checks them."""

    def __init__(self, key: bytes, clock: Clock) -> None:
        self._key = hmac.digest(key, PURPOSE, hashlib.sha256)
        self._clock = clock

    def sign(self, method: str, path: str, params: Mapping[str, str], seconds: float) -> str:
        """The path, escaped as it is sent, with a query that makes it good for so long."""
        assert not {EXPIRES, SIGNATURE} & params.keys(), f"{EXPIRES} and {SIGNATURE} are ours"
        expires = str(self._clock.micros() // MICROS + round(seconds))
        query = urlencode([*sorted(params.items()), (EXPIRES, expires)], quote_via=quote, safe="")
        return f"{path}?{query}&{SIGNATURE}={self._signature_of(method, path, query.encode())}"

    def verify(self, method: str, path: str, query: bytes) -> dict[str, str]:
        """The parameters of an address that we have signed. HEAD is as good as GET. Raises `SignatureInvalid`."""
        said, _, signature = query.rpartition(_SIGNATURE_SEPARATOR)
        if len(query) > QUERY_CHARS_MAX or not signature.isascii():
            raise SignatureInvalid
        if not hmac.compare_digest(signature.decode(), self._signature_of(method, path, said)):
            raise SignatureInvalid
        params = dict(parse_qsl(said.decode(), keep_blank_values=True))  # We wrote it: it can be read.
        if int(params.pop(EXPIRES)) <= self._clock.micros() // MICROS:
            raise SignatureInvalid("this address has expired")
        return params

    def _signature_of(self, method: str, path: str, query: bytes) -> str:
        """The signature of an address: of the very text, so that there is one way to write it."""
        method = "GET" if method == "HEAD" else method
        text = b"\n".join([method.encode(), path.encode(), query])  # None of them holds a line end.
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()
