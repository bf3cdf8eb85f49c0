"""The built-in handlers and their limits. The module of a handler is imported only when the handler is used."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import msgspec

from ingot.kernel.errors import InvalidInput

MINUTE: Final = 60.0


class BuiltInHandler(msgspec.Struct, frozen=True, kw_only=True):
    """A handler that comes with Ingot. `type` is its job type and the name of its extra in `pip install`.

    It runs isolated, because it reads untrusted files. With `reuse`, a request is answered with an existing job that
    does the same work. Increase `version` when the same input leads to a different output, so that older results are
    not reused.
    """

    type: str
    about: str
    timeout_seconds: float
    memory_mb: int
    reuse: bool = True
    version: int = 1

    def load(self) -> Callable[..., Any]:
        """Import the handler and return its function. Raises `InvalidInput` if something that it needs is missing."""
        try:
            module = import_module(f"{__name__}.{self.type}")
        except ModuleNotFoundError as error:
            raise InvalidInput(
                f"the handler {self.type} needs {error.name}, which is not installed",
                hint=f"Install its packages: pip install 'ingot[{self.type}]'",
            ) from error
        if (check_configuration := getattr(module, "check_configuration", None)) is not None:
            check_configuration()
        handle: Callable[..., Any] = module.handle
        return handle


BUILT_IN_HANDLERS: Final = {
    handler.type: handler
    for handler in (
        BuiltInHandler(type="pdf", about="PDF to Markdown", timeout_seconds=60 * MINUTE, memory_mb=2048),
        BuiltInHandler(type="ocr", about="Images and scans to text", timeout_seconds=60 * MINUTE, memory_mb=2048),
        BuiltInHandler(
            type="image",
            about="Images to other sizes and formats, without metadata",
            timeout_seconds=5 * MINUTE,
            memory_mb=1024,
        ),
        # Not reused: the result depends on the model of the worker, which the server does not know.
        BuiltInHandler(type="embed", about="Text to vectors", timeout_seconds=30 * MINUTE, memory_mb=4096, reuse=False),
    )
}


def built_in_handler(type: str) -> BuiltInHandler:
    """Return the built-in handler for this type. Raises `InvalidInput`."""
    if (handler := BUILT_IN_HANDLERS.get(type)) is None:
        raise InvalidInput(
            f"there is no built-in handler {type[:64]!r}", hint=f"Use one of: {', '.join(BUILT_IN_HANDLERS)}."
        )
    return handler
