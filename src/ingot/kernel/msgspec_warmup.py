"""Structs, made ready before threads share them."""

from __future__ import annotations

import threading
from contextlib import suppress

import msgspec

_lock = threading.Lock()
_prepared_structs: set[type[msgspec.Struct]] = set()


def prepare_structs() -> int:
    """Prepare all structs for decoding, and return how many were new. Call it before threads decode any.

    msgspec makes a struct ready when it is first decoded. Where two threads do so at once, one of them finds it half
    made, and the process ends with a segmentation fault.
    """
    with _lock:
        found = [msgspec.Struct]
        for kind in found:
            found += kind.__subclasses__()
        before = len(_prepared_structs)
        for kind in found[1:]:
            if kind not in _prepared_structs:
                with suppress(TypeError, NameError, AttributeError):  # It is never decoded, or not whole yet.
                    msgspec.json.Decoder(kind)
                    _prepared_structs.add(kind)
        return len(_prepared_structs) - before
