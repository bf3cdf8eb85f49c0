"""The tables of the report, the meaning of their numbers, and the goals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from benchmarks.blobs.listing import FEW, MANY, PAGE
from benchmarks.blobs.measurements import Measurements
from benchmarks.queue.report import markdown_table


class Row(msgspec.Struct, frozen=True):
    """A measured value, and the one with which it is compared."""

    name: str
    title: str
    baseline: str


class Table(msgspec.Struct, frozen=True):
    """A table of values. `about` explains them."""

    title: str
    unit: str
    about: str
    rows: Sequence[Row]
    digits: int = 0


TABLES: Final = (
    Table(
        "GET of 64 MiB from the folder",
        "MB/s",
        "Time from the request to the last byte. The bytes are discarded. Ingot verifies their checksums as it sends.",
        (
            Row("get nginx", "nginx, sendfile, a plain socket", "get nginx"),
            Row("get key", "**Ingot**, a key, a plain socket", "get nginx"),
            Row("get signed", "**Ingot**, a signed URL, a plain socket", "get nginx"),
            Row("curl nginx", "nginx, sendfile, curl", "curl nginx"),
            Row("curl key", "**Ingot**, a key, curl", "curl nginx"),
            Row("curl signed", "**Ingot**, a signed URL, curl", "curl nginx"),
        ),
    ),
    Table(
        "PUT of 64 MiB into the folder",
        "MB/s",
        "New bytes, from the request to the response, when they are hashed and durable on disk and in the database. A "
        "copy reads a cached file, writes it, and syncs it and its folder. The bare server does what a PUT needs at "
        "least, in threads: read the socket, hash, write and sync. Digests alone are computed by one thread.",
        (
            Row("copy", "copy with fsync of file and folder", "copy"),
            Row("put", "**Ingot**, a plain socket", "copy"),
            Row("curl put", "**Ingot**, curl -T", "copy"),
            Row("bare", "bare server: socket, digests, fsync", "copy"),
            Row("digests", "only SHA-256, BLAKE3 and XXH3, one thread", "copy"),
        ),
    ),
    Table(
        "PUT of 1 KiB, 32 at a time",
        "blobs/s",
        "New keys with new bytes, each durable at its response: over open connections, and in a process that has the "
        "store open. They are compared with 32 threads that write a file, sync it, rename it and sync its folder.",
        (
            Row("files", "one file each, fsync, rename, fsync", "files"),
            Row("small inside", "**Ingot**, SQLite, without HTTP", "files"),
            Row("small sqlite", "**Ingot**, SQLite, over HTTP", "files"),
            Row("small postgres", "**Ingot**, PostgreSQL, over HTTP", "files"),
        ),
    ),
    Table(
        "1 GiB through the server",
        "MB/s",
        "One blob of 1 GiB is uploaded and downloaded. The memory of the server process is read every 10 ms.",
        (Row("put 1 GiB", "PUT", ""), Row("get 1 GiB", "GET", "")),
    ),
    Table(
        f"A page of {PAGE:,} keys",
        "ms",
        "The time of one request. A ratio above 1 is slower.",
        tuple(
            Row(f"list {page} {name}", f"the {page} page of {keys:,}", f"list {page} few")
            for page in ("first", "later")
            for name, keys in (("few", FEW), ("many", MANY))
        ),
        digits=1,
    ),
    Table(
        "64 MiB in a bucket",
        "MB/s",
        "SeaweedFS on the same machine. With a signed URL, the client hashes the file, begins an upload, sends the "
        "bytes to the bucket, and completes it, for which the server reads them back. Through the server, the server "
        "hashes the bytes while it receives them. The response to a GET of a key is a redirect to a signed URL.",
        (
            Row("boto3 put", "boto3, put_object", "boto3 put"),
            Row("signed put", "**Ingot**, PUT to a signed URL", "boto3 put"),
            Row("server put", "**Ingot**, PUT through the server", "boto3 put"),
            Row("boto3 get", "boto3, get_object", "boto3 get"),
            Row("bucket get signed", "**Ingot**, GET of a signed URL", "boto3 get"),
            Row("bucket get key", "**Ingot**, GET of a key, curl -L", "boto3 get"),
        ),
    ),
)  # fmt: skip

RATIO_GOALS: Final = (
    ("GET of 64 MiB, a key, at least 0.8 × nginx", "get key", "get nginx", 0.8),
    ("GET of 64 MiB, a signed URL, at least 0.8 × nginx", "get signed", "get nginx", 0.8),
    ("PUT of 64 MiB at least 0.6 × a copy with fsync", "put", "copy", 0.6),
    ("PUT of 1 KiB, SQLite, over HTTP, at least 3 × one file each", "small sqlite", "files", 3.0),
    ("PUT of 1 KiB, SQLite, without HTTP, at least 3 × one file each", "small inside", "files", 3.0),
)
GROWTH_MIB_MAX: Final = 64
LISTING_MAX: Final = 1.5


def render(measurements: Measurements) -> list[str]:
    """Return the tables with measured values, and the goals."""
    lines: list[str] = []
    for table in TABLES:
        rows = [row for row in table.rows if measurements.has(row.name)]
        if rows:
            lines += [f"### {table.title}", "", table.about, "", *table_lines(table, rows, measurements), ""]
    return [*lines, "### Goals of blobs", "", *(f"- {line}" for line in judge(measurements))]


def table_lines(table: Table, rows: Sequence[Row], measurements: Measurements) -> list[str]:
    """Return the values of a table as Markdown."""
    cells = [["", table.unit, "lowest–highest", "ratio"]]
    for row in rows:
        low, high = measurements.range(row.name)
        ratio = f"{measurements.ratio(row.name, row.baseline):.2f} ×" if measurements.has(row.baseline) else "–"
        digits = table.digits
        median = f"{measurements.median(row.name):,.{digits}f}"
        cells.append([row.title, median, f"{low:,.{digits}f}–{high:,.{digits}f}", ratio])
    return markdown_table(cells, text_columns=(0,))


def judge(measurements: Measurements) -> Iterator[str]:
    """Return a line for each goal whose values were measured."""
    for title, name, baseline, ratio_min in RATIO_GOALS:
        if measurements.has(name, baseline):
            ratio = measurements.ratio(name, baseline)
            yield goal_line(ratio >= ratio_min, f"{title}; measured {ratio:.2f} ×")
    if measurements.has("grown"):
        growth = measurements.range("grown")[1]
        yield goal_line(
            growth < GROWTH_MIB_MAX,
            f"upload and download of 1 GiB grow the memory by less than {GROWTH_MIB_MAX} MiB; measured {growth:.0f}",
        )
    for page in ("first", "later"):
        if measurements.has(f"list {page} many"):
            ratio = measurements.ratio(f"list {page} many", f"list {page} few")
            text = f"the {page} page of {MANY:,} keys takes at most {LISTING_MAX:g} × that of {FEW:,}"
            yield goal_line(ratio <= LISTING_MAX, f"{text}; measured {ratio:.2f} ×")


def goal_line(is_met: bool, text: str) -> str:
    """Return the line of a goal."""
    return f"{'met' if is_met else 'NOT MET'}: {text}"
