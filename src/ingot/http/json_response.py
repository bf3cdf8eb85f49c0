"""Encoding of responses as JSON. Long lists are encoded in slices, so that other requests do not wait for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, get_args, get_origin

import msgspec

from ingot.http.routes import Route
from ingot.kernel.slices import UNSLICED_ITEMS_MAX, map_in_slices

_encode = msgspec.json.Encoder().encode
ITEMS_PER_CHUNK: Final = 10


def list_field_of(route: Route) -> str | None:
    """Return the name of the field of a response that is a list of any length, or `None` if there is none."""
    for declared in _flatten(route.handler_types()["return"]):
        if isinstance(get_origin(declared) or declared, type) and issubclass(
            get_origin(declared) or declared, msgspec.Struct
        ):
            for field in msgspec.structs.fields(declared):
                if field.required and get_origin(field.type) is list:
                    return field.name
    return None


def _flatten(declared: Any) -> Sequence[Any]:
    return [declared, *(inner for one in get_args(declared) for inner in _flatten(one))]


async def encode_list(content: Any, field: str) -> bytes:
    """Return a response as JSON that has a list in this field."""
    items = getattr(content, field, ())
    if len(items) <= UNSLICED_ITEMS_MAX:
        return _encode(content)
    chunks = [items[start : start + ITEMS_PER_CHUNK] for start in range(0, len(items), ITEMS_PER_CHUNK)]
    encoded = await map_in_slices(lambda chunk: _encode(chunk)[1:-1], chunks)
    # A list with the text of all items as its only element is encoded as the list of these items.
    joined = msgspec.Raw(b",".join(encoded))
    return _encode(msgspec.structs.replace(content, **{field: [joined]}))
