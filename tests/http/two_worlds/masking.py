"""What two responses of different tenants have in common: everything but times, IDs and random values."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from tests.http.two_worlds.direct_client import Answer

# Values that are different for every object, whatever else exists. An ID that both worlds know is replaced by its
# name, and any other by its number in the response, so that its place is still compared.
ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b(?:north|south)\b")
RANDOM: Final = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "<time>"),
    (re.compile(r'("(?:\w*seconds|uptime)":)\d+\.\d+'), r"\1<seconds>"),
    # A fence counts the claims of the whole server, which is why it is the same for all tenants.
    (re.compile(r'(fence"?[: ]) ?\d{6,}'), r"\1<fence>"),
    (re.compile(r"(expires=)\d+"), r"\1<time>"),
    (re.compile(r"(signature=)[\w-]+"), r"\1<signature>"),
    (re.compile(r"ingot_\w+"), "<secret>"),
    (re.compile(r"(^id: )\S+", re.MULTILINE), r"\1<event>"),
)
# An opaque text is compared by its length, because a position outside the grant can be longer or shorter.
CURSOR: Final = re.compile(r'("(?:next_cursor|cursor)":)"([^"]+)"')
EVENT_ID: Final = re.compile(r'("id":)"(?:[0-9a-f]{16}|[\w-]{30,})"(,"(?:tenant|cursor)")')
PER_RESPONSE: Final = frozenset({b"x-request-id", b"content-length"})


class Seen(msgspec.Struct, frozen=True):
    """A response without times, IDs and random values."""

    status: int
    headers: list[tuple[str, str]]
    body: str

    def __str__(self) -> str:
        return f"{self.status} {self.headers} {self.body}"


def mask(answer: Answer, names: dict[str, str]) -> Seen:
    """Return a response in which IDs are replaced by their `names`."""
    number_of: dict[str, str] = {}

    def name_of(match: re.Match[str]) -> str:
        value = match.group()
        return names.get(value) or number_of.setdefault(value, f"<id {len(number_of) + 1}>")

    def masked(text: str) -> str:
        return _without_random(ID.sub(name_of, text))

    body = masked(_with_sorted_references(answer.body, names).decode(errors="replace"))
    headers = [(name.decode(), masked(value.decode())) for name, value in answer.headers if name not in PER_RESPONSE]
    return Seen(answer.status, headers, body)


def _with_sorted_references(body: bytes, names: dict[str, str]) -> bytes:
    """Return a response with the references to a blob in the order of their names: the engines promise none."""
    if b'"references":[' not in body:
        return body
    content = msgspec.json.decode(body)
    content["references"].sort(
        key=lambda reference: (reference["kind"], reference["name"], names.get(reference["job_id"], ""))
    )
    return msgspec.json.encode(content)


def _without_random(text: str) -> str:
    text = CURSOR.sub(lambda match: f'{match[1]}"<{len(match[2])} characters>"', text)
    text = EVENT_ID.sub(r"\1<event>\2", text)
    for pattern, replacement in RANDOM:
        text = pattern.sub(replacement, text)
    return text


def difference(one: object, other: object) -> str:
    """Return the first place at which the texts of two values differ, for people."""
    left, right = str(one), str(other)
    start = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    begin = max(0, start - 60)
    return f"…{left[begin : start + 140]}\n    …{right[begin : start + 140]}"
