"""Bytes to and from signed addresses: most of what a process of a job does first, and httpx would take longest for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import httpx

from ingot.client.errors import store_refusal
from ingot.client.patience import Patience
from ingot.client.place import Place
from ingot.client.synchronous.http import ANSWER_SECONDS, AS_IT_IS, SyncHttp
from ingot.worker.lean_sync import PORTS, TIMES, SyncLeanTransport

NOBODY: Final = Place(url="http://localhost", headers={}, is_known=False)  # Signed addresses are their own credential.
_PLAIN: Final = re.compile(r"(https?)://([a-z0-9.-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?(/[!\"$-~]*)")


class BytesHttp(SyncHttp):
    """A connection to whoever has the bytes. Of an address that is not plain, httpx makes what can be sent."""

    def __init__(self, patience: Patience) -> None:
        self._lean = SyncLeanTransport()
        super().__init__(NOBODY, patience, transport=self._lean)

    def send(
        self, method: str, url: str, *, headers: dict[str, str], content: Iterator[bytes] | None = None
    ) -> httpx.Response:
        """See `SyncHttp`."""
        is_sized = content is None or "content-length" in map(str.lower, headers)
        if (plain := _PLAIN.fullmatch(url)) is None or not is_sized:
            return super().send(method, url, headers=headers, content=content)
        try:
            answer = self._answer(method, plain, headers, content)
            answer.read()
        except httpx.TransportError as fault:
            raise self._away(url, fault) from fault
        return answer

    @contextmanager
    def fetch_at(self, url: str, *, headers: dict[str, str]) -> Iterator[httpx.Response]:
        """See `SyncHttp`."""
        if (plain := _PLAIN.fullmatch(url)) is None:
            with super().fetch_at(url, headers=headers) as answer:
                yield answer
            return
        try:
            answer = self._answer("GET", plain, {**AS_IT_IS, **headers}, None)
            try:
                if not answer.is_success:
                    raise store_refusal(answer.status_code, answer.read())
                yield answer
            finally:
                answer.close()
        except httpx.TransportError as fault:
            raise self._away(url, fault) from fault

    def _answer(
        self, method: str, plain: re.Match[str], headers: dict[str, str], content: Iterator[bytes] | None
    ) -> httpx.Response:
        scheme, host, port, target = plain.groups()
        number = int(port or PORTS[scheme])
        named = host if number == PORTS[scheme] else f"{host}:{number}"
        lines = [
            f"{method} {target} HTTP/1.1",
            f"host: {named}",
            *(f"{name}: {text}" for name, text in headers.items()),
        ]
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        seconds = dict.fromkeys(TIMES, ANSWER_SECONDS)
        return self._lean.send((scheme, host.strip("[]"), number), head, content or (), **seconds)
