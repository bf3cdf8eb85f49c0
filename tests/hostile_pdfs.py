"""Hostile PDFs, written by hand: each is small and tries to use many resources."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable
from typing import Final

FONT: Final = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
MIB: Final = 1024 * 1024


def pdf(*objects: bytes, root: int = 1) -> bytes:
    """Return a file of these objects, numbered from 1, with a correct cross-reference table."""
    document = bytearray(b"%PDF-1.7\n")
    offsets = []
    for number, body in enumerate(objects, 1):
        offsets.append(len(document))
        document += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    xref_offset = len(document)
    document += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    document += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    document += b"trailer << /Size %d /Root %d 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, root, xref_offset)
    return bytes(document)


def stream(data: bytes, entries: bytes = b"") -> bytes:
    """Return a stream object."""
    return b"<< /Length %d %b >>\nstream\n%b\nendstream" % (len(data), entries, data)


def one_page(content: bytes, resources: bytes, *more: bytes) -> bytes:
    """Return a file of one page. Further objects are numbered from 5."""
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 300] /Contents 4 0 R /Resources << %b >> >>" % resources
    return pdf(b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Count 1 /Kids [3 0 R] >>", page, content, *more)


def good(text: str = "A good page.") -> bytes:
    """Return a valid file."""
    content = stream(b"BT /F 12 Tf 30 200 Td (%b) Tj ET" % text.encode())
    return one_page(content, b"/Font << /F 5 0 R >>", FONT)


def many_pages(pages: int) -> bytes:
    """Return a file with this many pages in one list."""
    kids = b" ".join(b"%d 0 R" % (number + 3) for number in range(pages))
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] >>"
    tree = b"<< /Type /Pages /Count %d /Kids [%b] >>" % (pages, kids)
    return pdf(b"<< /Type /Catalog /Pages 2 0 R >>", tree, *[page] * pages)


def endless_tree() -> bytes:
    """Return a file whose page tree contains itself."""
    branch = b"<< /Type /Pages /Count 9 /Parent 2 0 R /Kids [2 0 R 3 0 R] >>"
    tree = b"<< /Type /Pages /Count 9 /Kids [3 0 R 2 0 R] >>"
    return pdf(b"<< /Type /Catalog /Pages 2 0 R >>", tree, branch)


def lying_count() -> bytes:
    """Return a file with one page that claims two billion pages."""
    return good().replace(b"/Count 1 ", b"/Count 2000000000 ")


def deep_nesting(levels: int = 200_000) -> bytes:
    """Return a file with deeply nested arrays."""
    return one_page(stream(b""), b"/Deep " + b"[" * levels + b"]" * levels)


def deep_tree(levels: int = 20_000) -> bytes:
    """Return a file whose page is deep in the page tree."""
    branches = [b"<< /Type /Pages /Count 1 /Kids [%d 0 R] >>" % (number + 3) for number in range(levels)]
    page = b"<< /Type /Page /Parent %d 0 R /MediaBox [0 0 9 9] >>" % (levels + 1)
    return pdf(b"<< /Type /Catalog /Pages 2 0 R >>", *branches, page)


def deep_forms() -> bytes:
    """Return a file with a form that draws itself."""
    form = stream(
        b"/X Do /X Do", b"/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /X 5 0 R >> >>"
    )
    return one_page(stream(b"/X Do"), b"/XObject << /X 5 0 R >>", form)


def huge_image(side: int = 50_000) -> bytes:
    """Return a file with an image that would fill the memory."""
    entries = b"/Type /XObject /Subtype /Image /Width %d /Height %d /ColorSpace /DeviceRGB /BitsPerComponent 8"
    data = zlib.compress(bytes(MIB))
    image = stream(data, entries % (side, side) + b" /Filter /FlateDecode")
    return one_page(stream(b"q 300 0 0 300 0 0 cm /I Do Q"), b"/XObject << /I 5 0 R >>", image)


def flate_bomb(gib: int = 3) -> bytes:
    """Return a file whose page content decompresses to gibibytes. It is compressed twice, as the format allows."""
    packer = zlib.compressobj(9)
    text = b"BT (aaaaaaaa) Tj ET\n" * (MIB // 20)
    start = packer.compress(text) + packer.flush(zlib.Z_FULL_FLUSH)
    repeated = packer.compress(text) + packer.flush(
        zlib.Z_FULL_FLUSH
    )  # This block can be repeated, because it does not depend on earlier ones.
    compressed = zlib.compress(start + repeated * (gib * 1024) + packer.flush(), 9)
    return one_page(stream(compressed, b"/Filter [/FlateDecode /FlateDecode]"), b"/Font << /F 5 0 R >>", FONT)


def looping_table() -> bytes:
    """Return a file whose cross-reference table refers to itself."""
    document = good()
    xref_offset = int(document.rsplit(b"startxref\n", 1)[1].split()[0])
    return document.replace(b"/Root 1 0 R >>", b"/Root 1 0 R /Prev %d >>" % xref_offset)


def looping_objects() -> bytes:
    """Return a file with objects that refer to each other."""
    return pdf(b"<< /Type /Catalog /Pages 2 0 R >>", b"3 0 R", b"2 0 R")


def zip_bomb() -> bytes:
    """Return a ZIP archive, to be sent with another name."""
    document = io.BytesIO()
    with zipfile.ZipFile(document, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(64 * MIB))
    return document.getvalue()


HOSTILE: Final[dict[str, Callable[[], bytes]]] = {
    "many-pages": lambda: many_pages(100_000),
    "endless-tree": endless_tree,
    "lying-count": lying_count,
    "deep-nesting": deep_nesting,
    "deep-tree": deep_tree,
    "deep-forms": deep_forms,
    "huge-image": huge_image,
    "flate-bomb": flate_bomb,
    "looping-table": looping_table,
    "looping-objects": looping_objects,
    "zip-bomb": zip_bomb,
}
