"""Opens untrusted PDF files, and rejects unreadable ones with a clear message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Final, NoReturn

import pypdfium2

from ingot.worker.handlers.documents.front_matter import short_title
from ingot.worker.job import NoRetry

PAGES_MAX: Final = 20_000
HEAD_BYTES: Final = 1024  # "%PDF-" must be within these first bytes, as PDF readers traditionally allow.
FILE_SIGNATURES: Final = {
    b"PK\x03\x04": "a ZIP archive or an Office document",
    b"\xd0\xcf\x11\xe0": "an old Office document",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"II*\x00": "a TIFF image",
    b"MM\x00*": "a TIFF image",
    b"{\\rtf": "an RTF document",
    b"%!PS": "a PostScript document",
    b"<!DO": "a web page",
    b"<htm": "a web page",
}


@contextmanager
def open_pdf(path: Path) -> Iterator[pypdfium2.PdfDocument]:
    """Open a PDF. Raises `NoRetry` if it cannot be read, has no pages or has too many."""
    require_pdf(path)
    try:
        document = pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError as error:
        reject(error, path)
    try:
        pages = len(document)
        if pages == 0:
            raise NoRetry("the file is empty: it has no pages")
        if pages > PAGES_MAX:
            raise NoRetry(f"the file has {pages} pages, but at most {PAGES_MAX} are supported; split it")
        yield document
    finally:
        document.close()


def looks_like_pdf(path: Path) -> bool:
    """Whether the file starts like a PDF."""
    return b"%PDF-" in _read_head(path)


def require_pdf(path: Path) -> None:
    """Raise `NoRetry` if the file is not a PDF."""
    head = _read_head(path)
    if not head:
        raise NoRetry("the file is empty: it has 0 bytes")
    if b"%PDF-" not in head:
        kind = FILE_SIGNATURES.get(head[:4]) or FILE_SIGNATURES.get(head[:3])
        raise NoRetry("the file is not a PDF" + (f": it looks like {kind}" if kind else ""))


def reject(error: Exception, path: Path) -> NoReturn:
    """Raise `NoRetry` with a message for the error of a PDF library."""
    message = str(error).lower()
    if any(word in message for word in ("password", "encrypted", "security")) and _is_encrypted(path):
        raise NoRetry("the file is encrypted; remove its password, and send it again") from error
    raise NoRetry("the file is damaged: it begins as a PDF, and its pages cannot be found") from error


def _is_encrypted(path: Path) -> bool:
    """Whether the file declares encryption. pdfium's error text may refer to a file that it opened before."""
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        return data.find(b"/Encrypt") >= 0


def pdf_title(document: pypdfium2.PdfDocument) -> str:
    """Return the title from the metadata of a PDF, or an empty string."""
    return short_title(document.get_metadata_dict().get("Title", ""))


def _read_head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)
