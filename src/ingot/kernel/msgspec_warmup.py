"""Preparation of msgspec structs before threads decode them."""

from __future__ import annotations

import threading
from contextlib import suppress

import msgspec

_lock = threading.Lock()
_prepared_structs: set[type[msgspec.Struct]] = set()


def prepare_structs() -> int:
    """Prepare all structs for decoding, and return how many were new. Call this before threads decode structs.

    msgspec initializes a struct type when a decoder for it is first created. When two threads do so at the same time,
    one of them uses a type that is only partly initialized, and the process ends with a segmentation fault.
    """
    with _lock:
        struct_types = [msgspec.Struct]
        for struct_type in struct_types:
            struct_types += struct_type.__subclasses__()
        prepared_before = len(_prepared_structs)
        for struct_type in struct_types[1:]:
            if struct_type not in _prepared_structs:
                # Some structs cannot be decoded, and the annotations of others cannot be resolved yet.
                with suppress(TypeError, NameError, AttributeError):
                    msgspec.json.Decoder(struct_type)
                    _prepared_structs.add(struct_type)
        return len(_prepared_structs) - prepared_before
