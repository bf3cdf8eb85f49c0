"""The front matter of Markdown: what it was made of, as YAML that nothing in a document can break out of."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Final

import blake3
import msgspec

TITLE_CHARS_MAX: Final = 300
_UNSAFE: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file and what identifies it."""

    name: str
    blake3: str
    sha256: str


def identify_source(path: Path, name: str) -> SourceFile:
    """The source that a file is."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return SourceFile(name=name, blake3=blake3.blake3().update_mmap(path).hexdigest(), sha256=sha256)


def front_matter(
    source: SourceFile, *, title: str, pages: int, converter: str, ocr_pages: str, converted_pages: str = ""
) -> str:
    """The lines above the Markdown. `converted_pages` are those that were asked for, where it was not all of them."""
    known = {
        "title": quote_yaml(title),
        "source": quote_yaml(source.name),
        "pages": str(pages),
        "blake3": quote_yaml(source.blake3),
        "sha256": quote_yaml(source.sha256),
        "converter": quote_yaml(converter),
    }
    if converted_pages:
        known["converted_pages"] = quote_yaml(converted_pages)
    if ocr_pages:
        known["ocr_pages"] = quote_yaml(ocr_pages)
    return "".join(["---\n", *(f"{name}: {value}\n" for name, value in known.items()), "---\n"])


def quote_yaml(text: str) -> str:
    """A text as YAML takes it, whatever it holds: JSON, with what YAML does not print written by its number."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))


def short_title(text: str) -> str:
    """A title on one line, without what cannot be stored."""
    words = " ".join(text.replace("\x00", " ").split())
    return words.encode("utf-8", "replace").decode()[:TITLE_CHARS_MAX]
