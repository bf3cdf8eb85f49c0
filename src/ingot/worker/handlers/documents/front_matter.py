"""The YAML front matter of the Markdown. All text is quoted, so that a document cannot inject YAML."""

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
    """The name and the digests of a source file."""

    name: str
    blake3: str
    sha256: str


def identify_source(path: Path, name: str) -> SourceFile:
    """Compute the digests of a file."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return SourceFile(name=name, blake3=blake3.blake3().update_mmap(path).hexdigest(), sha256=sha256)


def front_matter(
    source: SourceFile, *, title: str, pages: int, converter: str, ocr_pages: str, converted_pages: str = ""
) -> str:
    """Compose the front matter. `converted_pages` lists the selected pages, or is empty if all were converted."""
    fields = {
        "title": quote_yaml(title),
        "source": quote_yaml(source.name),
        "pages": str(pages),
        "blake3": quote_yaml(source.blake3),
        "sha256": quote_yaml(source.sha256),
        "converter": quote_yaml(converter),
    }
    if converted_pages:
        fields["converted_pages"] = quote_yaml(converted_pages)
    if ocr_pages:
        fields["ocr_pages"] = quote_yaml(ocr_pages)
    return "".join(["---\n", *(f"{name}: {value}\n" for name, value in fields.items()), "---\n"])


def quote_yaml(text: str) -> str:
    """Quote any text for YAML: as a JSON string, with characters that YAML does not allow escaped."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))


def short_title(text: str) -> str:
    """Return a title on one line, without characters that cannot be stored, cut to `TITLE_CHARS_MAX`."""
    words = " ".join(text.replace("\x00", " ").split())
    return words.encode("utf-8", "replace").decode()[:TITLE_CHARS_MAX]
