"""Opening files that somebody sent: what cannot be read is told in a sentence, before anything is read."""

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
HEAD_BYTES: Final = 1024  # Where "%PDF-" has to be; readers have always been lenient by so much.
FILE_SIGNATURES: Final = {
    b"PK\x03\x04": "a ZIP archive, or an Office document, which is one",
    b"\xd0\xcf\x11\xe0": "an old Office document",
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"II*\x00": "a TIFF picture",
    b"MM\x00*": "a TIFF picture",
    b"{\\rtf": "an RTF document",
    b"%!PS": "a PostScript document",
    b"<!DO": "a web page",
    b"<htm": "a web page",
}


@contextmanager
def open_pdf(path: Path) -> Iterator[pypdfium2.PdfDocument]:
    """A PDF, whose pages were counted. Raises `NoRetry` when it cannot be read, or has too many pages."""
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
            raise NoRetry(f"the file has {pages} pages; the most is {PAGES_MAX}. Split it")
        yield document
    finally:
        document.close()


def looks_like_pdf(path: Path) -> bool:
    """Whether a file begins as PDFs do."""
    return b"%PDF-" in _read_head(path)


def require_pdf(path: Path) -> None:
    """Raises `NoRetry` for a file that is none."""
    head = _read_head(path)
    if not head:
        raise NoRetry("the file is empty: it has 0 bytes")
    if b"%PDF-" not in head:
        kind = FILE_SIGNATURES.get(head[:4]) or FILE_SIGNATURES.get(head[:3])
        raise NoRetry("the file is not a PDF" + (f": it looks like {kind}" if kind else ""))


def reject(error: Exception, path: Path) -> NoReturn:
    """Raises `NoRetry` with a sentence for what a reader of PDFs said of a file."""
    said = str(error).lower()
    if any(word in said for word in ("password", "encrypted", "security")) and _is_encrypted(path):
        raise NoRetry("the file is encrypted; remove its password, and send it again") from error
    raise NoRetry("the file is damaged: it begins as a PDF, and its pages cannot be found") from error


def _is_encrypted(path: Path) -> bool:
    """Whether a file says so: what pdfium says last may be of a file before."""
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        return data.find(b"/Encrypt") >= 0


def pdf_title(document: pypdfium2.PdfDocument) -> str:
    """What a PDF calls itself."""
    return short_title(document.get_metadata_dict().get("Title", ""))


def _read_head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)
