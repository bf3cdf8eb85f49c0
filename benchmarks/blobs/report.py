"""Tables for the terminal and for RESULTS.md, what each figure means, and the goals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from benchmarks.blobs.listing import FEW, MANY, PAGE
from benchmarks.blobs.measurements import Measurements
from benchmarks.queue.report import markdown_table


class Row(msgspec.Struct, frozen=True):
    """A figure, and the one that it is compared with."""

    name: str
    title: str
    beside: str


class Table(msgspec.Struct, frozen=True):
    """Figures of one kind. `about` says what they mean."""

    title: str
    unit: str
    about: str
    rows: Sequence[Row]
    digits: int = 0


TABLES: Final = (
    Table(
        "GET of 64 MiB from the folder",
        "MB/s",
        "From the request to the last byte, which is thrown away. Ours are compared with their checks on the way.",
        (
            Row("get nginx", "nginx, sendfile, a plain socket", "get nginx"),
            Row("get key", "**Ingot**, a key, a plain socket", "get nginx"),
            Row("get signed", "**Ingot**, a signed address, a plain socket", "get nginx"),
            Row("curl nginx", "nginx, sendfile, curl", "curl nginx"),
            Row("curl key", "**Ingot**, a key, curl", "curl nginx"),
            Row("curl signed", "**Ingot**, a signed address, curl", "curl nginx"),
        ),
    ),
    Table(
        "PUT of 64 MiB into the folder",
        "MB/s",
        "Bytes that are new, from the request to the answer: hashed, on the disk and in the database. A copy reads a "
        "file from memory, writes it, and syncs it and its folder. A bare intake is the least that a PUT "
        "can do: threads that read a socket, hash, write and sync. Digests alone are what one thread makes of them.",
        (
            Row("copy", "a copy with fsync of file and folder", "copy"),
            Row("put", "**Ingot**, a plain socket", "copy"),
            Row("curl put", "**Ingot**, curl -T", "copy"),
            Row("bare", "a bare intake: socket, digests, fsync", "copy"),
            Row("digests", "only SHA-256, BLAKE3 and XXH3, one thread", "copy"),
        ),
    ),
    Table(
        "PUT of 1 KiB, 32 at once",
        "blobs/s",
        "New keys with new bytes, each durable when it is answered: over kept connections, and in the process that has "
        "the store open; beside 32 threads of one process that write a file, sync it, rename it and sync its folder.",
        (
            Row("files", "a file for each, fsync, rename, fsync", "files"),
            Row("small inside", "**Ingot**, SQLite, without HTTP", "files"),
            Row("small sqlite", "**Ingot**, SQLite, over HTTP", "files"),
            Row("small postgres", "**Ingot**, PostgreSQL, over HTTP", "files"),
        ),
    ),
    Table(
        "1 GiB through the server",
        "MB/s",
        "One blob of 1 GiB in and out again; the memory of the server's process is looked at every 10 ms.",
        (Row("put 1 GiB", "PUT", ""), Row("get 1 GiB", "GET", "")),
    ),
    Table(
        f"A page of {PAGE:,} keys",
        "ms",
        "The time of one request, the longer the more; more than 1 × is slower.",
        tuple(
            Row(f"list {which} {name}", f"the {which} page of {keys:,}", f"list {which} few")
            for which in ("first", "later")
            for name, keys in (("few", FEW), ("many", MANY))
        ),
        digits=1,
    ),
    Table(
        "64 MiB in a bucket",
        "MB/s",
        "SeaweedFS on the same machine. A signed address: hash, begin, send to the bucket, complete, for which the "
        "server reads it back. Through the server: it hashes on the way. A key is answered with an address.",
        (
            Row("boto3 put", "boto3, put_object", "boto3 put"),
            Row("signed put", "**Ingot**, PUT to a signed address", "boto3 put"),
            Row("server put", "**Ingot**, PUT through the server", "boto3 put"),
            Row("boto3 get", "boto3, get_object", "boto3 get"),
            Row("bucket get signed", "**Ingot**, GET of a signed address", "boto3 get"),
            Row("bucket get key", "**Ingot**, GET of a key, curl -L", "boto3 get"),
        ),
    ),
)  # fmt: skip

LEAST: Final = (
    ("GET of 64 MiB, a key, at least 0.8 × nginx", "get key", "get nginx", 0.8),
    ("GET of 64 MiB, a signed address, at least 0.8 × nginx", "get signed", "get nginx", 0.8),
    ("PUT of 64 MiB at least 0.6 × a copy with fsync", "put", "copy", 0.6),
    ("PUT of 1 KiB, SQLite, over HTTP, at least 3 × a file for each", "small sqlite", "files", 3.0),
    ("PUT of 1 KiB, SQLite, without HTTP, at least 3 × a file for each", "small inside", "files", 3.0),
)
GROWN_MIB_MAX: Final = 64
LISTING_MAX: Final = 1.5


def render(found: Measurements) -> list[str]:
    """All tables of what was measured, and the goals."""
    lines: list[str] = []
    for table in TABLES:
        rows = [row for row in table.rows if found.has(row.name)]
        if rows:
            lines += [f"### {table.title}", "", table.about, "", *table_lines(table, rows, found), ""]
    return [*lines, "### Goals of blobs", "", *(f"- {line}" for line in judge(found))]


def table_lines(table: Table, rows: Sequence[Row], found: Measurements) -> list[str]:
    """Figures as a Markdown table."""
    cells = [["", table.unit, "lowest–highest", "× of beside"]]
    for row in rows:
        low, high = found.range(row.name)
        ratio = f"{found.ratio(row.name, row.beside):.2f} ×" if found.has(row.beside) else "–"
        digits = table.digits
        middle = f"{found.middle(row.name):,.{digits}f}"
        cells.append([row.title, middle, f"{low:,.{digits}f}–{high:,.{digits}f}", ratio])
    return markdown_table(cells, text_columns=(0,))


def judge(found: Measurements) -> Iterator[str]:
    """A line for each goal of what was measured."""
    for title, name, beside, least in LEAST:
        if found.has(name, beside):
            ratio = found.ratio(name, beside)
            yield goal_line(ratio >= least, f"{title}; found {ratio:.2f} ×")
    if found.has("grown"):
        most = found.range("grown")[1]
        yield goal_line(
            most < GROWN_MIB_MAX, f"1 GiB in and out grows by less than {GROWN_MIB_MAX} MiB; found {most:.0f}"
        )
    for which in ("first", "later"):
        if found.has(f"list {which} many"):
            ratio = found.ratio(f"list {which} many", f"list {which} few")
            text = f"the {which} page of {MANY:,} keys takes at most {LISTING_MAX:g} × that of {FEW:,}"
            yield goal_line(ratio <= LISTING_MAX, f"{text}; found {ratio:.2f} ×")


def goal_line(met: bool, text: str) -> str:
    """Whether a goal is met, and which."""
    return f"{'met' if met else 'NOT MET'}: {text}"
