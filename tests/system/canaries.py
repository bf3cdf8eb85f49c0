"""Planted secrets, and the outputs of a server that are searched for them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

from ingot.kernel.ids import new_id


class Output:
    """Bytes that a server has output, and the secrets that they must contain."""

    def __init__(self, name: str, content: bytes) -> None:
        self.name = name
        self.content = content
        self.may_contain: set[str] = set()


class Canaries:
    """Secrets that must occur only in the outputs that are meant to contain them."""

    def __init__(self) -> None:
        self.planted: dict[str, str] = {}
        self.outputs: list[Output] = []

    def create(self, description: str) -> str:
        """Create a secret."""
        return self.add(f"canary-{new_id()}", description)

    def add(self, secret: str, description: str, *, allowed_in: Output | None = None) -> str:
        """Add an existing secret, and the output that must contain it, if any."""
        self.planted[secret] = description
        if allowed_in is not None:
            allowed_in.may_contain.add(secret)
        return secret

    def add_output(self, name: str, content: bytes) -> Output:
        """Add bytes to search."""
        self.outputs.append(Output(name, content))
        return self.outputs[-1]

    def leaks(self) -> list[str]:
        """Return each secret found in an output that must not contain it, or missing from one that must."""
        leaks = []
        for secret, description in self.planted.items():
            forms = list(forms_of(secret))
            for output in self.outputs:
                is_found = any(form in output.content for form in forms)
                if is_found != (secret in output.may_contain):
                    leaks.append(f"{description} is {'is_found' if is_found else 'missing'} in {output.name}")
        return leaks


def forms_of(secret: str) -> Iterator[bytes]:
    """Yield a secret as it is, as in URLs, in hex, and in base64 at any offset."""
    raw = secret.encode()
    yield from {raw, quote(secret, safe="").encode(), quote(secret).encode(), quote_plus(secret).encode()}
    yield raw.hex().encode()
    if secret.startswith("ingot"):
        yield raw[: len(raw) * 2 // 3]  # A truncated token still reveals most of it.
    for shift in range(3):
        encoded = base64.b64encode(b"\x00" * shift + raw)
        searchable = encoded[4 if shift else 0 : len(encoded) // 4 * 4 - 4]
        yield from {searchable, searchable.translate(bytes.maketrans(b"+/", b"-_"))}
