"""Secrets that are planted on purpose, and all that is looked through for them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

from ingot.kernel.ids import new_id


class Outlet:
    """Something that a server let out, and the secrets that are to be seen there."""

    def __init__(self, name: str, content: bytes) -> None:
        self.name = name
        self.content = content
        self.shows: set[str] = set()


class Canaries:
    """What must be found nowhere but where it is meant to be shown."""

    def __init__(self) -> None:
        self.planted: dict[str, str] = {}
        self.outlets: list[Outlet] = []

    def new(self, what: str) -> str:
        """A secret that we make up."""
        return self.keep(f"canary-{new_id()}", what)

    def keep(self, secret: str, what: str, *, shown_in: Outlet | None = None) -> str:
        """A secret that somebody else made; one outlet may be there to show it."""
        self.planted[secret] = what
        if shown_in is not None:
            shown_in.shows.add(secret)
        return secret

    def let_out(self, name: str, content: bytes) -> Outlet:
        """Something to look through."""
        self.outlets.append(Outlet(name, content))
        return self.outlets[-1]

    def leaks(self) -> list[str]:
        """Which secret is found where it should not be, and which one is not shown where it should."""
        found = []
        for secret, what in self.planted.items():
            forms = list(forms_of(secret))
            for outlet in self.outlets:
                seen = any(form in outlet.content for form in forms)
                if seen != (secret in outlet.shows):
                    found.append(f"{what} is {'seen' if seen else 'missing'} in {outlet.name}")
        return found


def forms_of(secret: str) -> Iterator[bytes]:
    """A secret as it is, as it stands in a URL, in hex, and in base64 whatever stands before it."""
    raw = secret.encode()
    yield from {raw, quote(secret, safe="").encode(), quote(secret).encode(), quote_plus(secret).encode()}
    yield raw.hex().encode()
    if secret.startswith("ingot"):
        yield raw[: len(raw) * 2 // 3]  # Cut, it still tells most.
    for shift in range(3):
        spoiled = base64.b64encode(b"\x00" * shift + raw)
        own = spoiled[4 if shift else 0 : len(spoiled) // 4 * 4 - 4]
        yield from {own, own.translate(bytes.maketrans(b"+/", b"-_"))}
