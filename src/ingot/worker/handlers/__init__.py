"""Handlers that come with Ingot, and what each may take. The module of one is read when it is wanted."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import msgspec

from ingot.kernel.errors import InvalidInput

MINUTE: Final = 60.0


class BuiltInHandler(msgspec.Struct, frozen=True, kw_only=True):
    """A handler of ours, by the type of its jobs, which is the name of its extra too.

    It runs isolated: it reads files that somebody sent. With `reuse` the same work is done once; the `version` grows
    when the same input comes out otherwise, and results of an older one are not used again.
    """

    type: str
    about: str
    timeout_seconds: float
    memory_mb: int
    reuse: bool = True
    version: int = 1

    def load(self) -> Callable[..., Any]:
        """Its function. Raises `InvalidInput` when what it needs is not there."""
        try:
            module = import_module(f"{__name__}.{self.type}")
        except ModuleNotFoundError as error:
            raise InvalidInput(
                f"the handler of {self.type} needs {error.name}, which is not installed",
                hint=f"Install what it needs: pip install 'ingot[{self.type}]'",
            ) from error
        if (expect_ready := getattr(module, "expect_ready", None)) is not None:
            expect_ready()
        handle: Callable[..., Any] = module.handle
        return handle


BUILT_IN_HANDLERS: Final = {
    one.type: one
    for one in (
        BuiltInHandler(type="pdf", about="PDF to Markdown", timeout_seconds=60 * MINUTE, memory_mb=2048),
        BuiltInHandler(type="ocr", about="Pictures and scans to text", timeout_seconds=60 * MINUTE, memory_mb=2048),
        BuiltInHandler(
            type="image", about="Thumbnails, other formats, no metadata", timeout_seconds=5 * MINUTE, memory_mb=1024
        ),
        # What comes of a text depends on the model of the worker, of which the server knows nothing.
        BuiltInHandler(type="embed", about="Text to vectors", timeout_seconds=30 * MINUTE, memory_mb=4096, reuse=False),
    )
}


def built_in_handler(type: str) -> BuiltInHandler:
    """The handler of ours with this name. Raises `InvalidInput`."""
    if (found := BUILT_IN_HANDLERS.get(type)) is None:
        raise InvalidInput(
            f"no handler {type[:64]!r} comes with Ingot", hint=f"These do: {', '.join(BUILT_IN_HANDLERS)}."
        )
    return found
