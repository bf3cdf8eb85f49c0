"""PDFs that nobody means well with, written by hand: each is small, and asks for much."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable
from typing import Final

FONT: Final = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
MIB: Final = 1024 * 1024


def pdf(*objects: bytes, root: int = 1) -> bytes:
    """A file of these objects, numbered from 1, with a right table of where they are."""
    made = bytearray(b"%PDF-1.7\n")
    places = []
    for number, body in enumerate(objects, 1):
        places.append(len(made))
        made += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    table = len(made)
    made += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    made += b"".join(b"%010d 00000 n \n" % place for place in places)
    made += b"trailer << /Size %d /Root %d 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, root, table)
    return bytes(made)


def stream(data: bytes, entries: bytes = b"") -> bytes:
    """A stream of these bytes."""
    return b"<< /Length %d %b >>\nstream\n%b\nendstream" % (len(data), entries, data)


def one_page(content: bytes, resources: bytes, *more: bytes) -> bytes:
    """A file of one page; what else it needs is numbered from 5."""
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 300] /Contents 4 0 R /Resources << %b >> >>" % resources
    return pdf(b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Count 1 /Kids [3 0 R] >>", page, content, *more)


def good(words: str = "A good page.") -> bytes:
    """A file that is as it should be."""
    shown = stream(b"BT /F 12 Tf 30 200 Td (%b) Tj ET" % words.encode())
    return one_page(shown, b"/Font << /F 5 0 R >>", FONT)


def many_pages(pages: int) -> bytes:
    """Pages without end, all in one list."""
    kids = b" ".join(b"%d 0 R" % (number + 3) for number in range(pages))
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] >>"
    tree = b"<< /Type /Pages /Count %d /Kids [%b] >>" % (pages, kids)
    return pdf(b"<< /Type /Catalog /Pages 2 0 R >>", tree, *[page] * pages)


def endless_tree() -> bytes:
    """A tree of pages whose branches hold their trunk."""
    branch = b"<< /Type /Pages /Count 9 /Parent 2 0 R /Kids [2 0 R 3 0 R] >>"
    tree = b"<< /Type /Pages /Count 9 /Kids [3 0 R 2 0 R] >>"
    return pdf(b"<< /Type /Catalog /Pages 2 0 R >>", tree, branch)


def lying_count() -> bytes:
    """One page that is counted as two thousand million."""
    return good().replace(b"/Count 1 ", b"/Count 2000000000 ")


def deep_nesting(levels: int = 200_000) -> bytes:
    """Lists in lists in lists."""
    return one_page(stream(b""), b"/Deep " + b"[" * levels + b"]" * levels)


def deep_tree(levels: int = 20_000) -> bytes:
    """A page below twenty thousand branches."""
    branches = [b"<< /Type /Pages /Count 1 /Kids [%d 0 R] >>" % (number + 3) for number in range(levels)]
    page = b"<< /Type /Page /Parent %d 0 R /MediaBox [0 0 9 9] >>" % (levels + 1)
    return pdf(b"<< /Type /Catalog /Pages 2 0 R >>", *branches, page)


def deep_forms() -> bytes:
    """A form that draws itself."""
    form = stream(
        b"/X Do /X Do", b"/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /X 5 0 R >> >>"
    )
    return one_page(stream(b"/X Do"), b"/XObject << /X 5 0 R >>", form)


def huge_image(side: int = 50_000) -> bytes:
    """A picture that would fill the memory, in a few bytes."""
    entries = b"/Type /XObject /Subtype /Image /Width %d /Height %d /ColorSpace /DeviceRGB /BitsPerComponent 8"
    data = zlib.compress(bytes(MIB))
    image = stream(data, entries % (side, side) + b" /Filter /FlateDecode")
    return one_page(stream(b"q 300 0 0 300 0 0 cm /I Do Q"), b"/XObject << /I 5 0 R >>", image)


def flate_bomb(gib: int = 3) -> bytes:
    """A page whose text unpacks to gibibytes: packed twice, as the format allows."""
    packer = zlib.compressobj(9)
    words = b"BT (aaaaaaaa) Tj ET\n" * (MIB // 20)
    begin = packer.compress(words) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(words) + packer.flush(zlib.Z_FULL_FLUSH)  # It leans on nothing before it.
    twice = zlib.compress(begin + again * (gib * 1024) + packer.flush(), 9)
    return one_page(stream(twice, b"/Filter [/FlateDecode /FlateDecode]"), b"/Font << /F 5 0 R >>", FONT)


def looping_table() -> bytes:
    """A table that names itself as the one before."""
    made = good()
    table = int(made.rsplit(b"startxref\n", 1)[1].split()[0])
    return made.replace(b"/Root 1 0 R >>", b"/Root 1 0 R /Prev %d >>" % table)


def looping_objects() -> bytes:
    """References that lead to themselves."""
    return pdf(b"<< /Type /Catalog /Pages 2 0 R >>", b"3 0 R", b"2 0 R")


def zip_bomb() -> bytes:
    """An archive that was given another name."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(64 * MIB))
    return made.getvalue()


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
