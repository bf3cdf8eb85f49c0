"""Tables for the terminal and for RESULTS.md, and the goals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from benchmarks.blobs.measurements import Measurements
from benchmarks.blobs.report import Row, Table, goal_line, table_lines

BOOKS: Final = "Pages a second, books of many pages"
MANUALS: Final = "Pages a second, manuals of some Debian packages"
LEAVES: Final = "1,000 files of one page"
TABLES: Final = (
    Table(
        BOOKS,
        "pages/s",
        "On all cores. The whole way is one command, `ingot ingest --output`: hashed, uploaded, converted by an "
        "isolated worker, fetched and written; server, worker and command share the cores. Alone, a process for each "
        "core has nothing to do but convert. What the others make has no headings and no tables.",
        (
            Row("alone", "Ingot's converter alone", "alone"),
            Row("whole", "**Ingot**, the whole way", "alone"),
            Row("markitdown", "markitdown alone", "alone"),
            Row("pdfplumber", "a loop of pdfplumber alone", "alone"),
        ),
    ),
    Table(
        MANUALS,
        "pages/s",
        "The same with PDFs as people make them. None fails: the command would, and the run with it.",
        (
            Row("manuals alone", "Ingot's converter alone", "manuals alone"),
            Row("manuals whole", "**Ingot**, the whole way", "manuals alone"),
        ),
    ),
    Table(
        LEAVES,
        "files/s",
        "`ingot ingest` of 1,000 files: until all are stored and asked for, with no worker, and with one at work "
        "on the same cores meanwhile; until the last is converted and fetched; and again, when all is done already.",
        (
            Row("leaves stored", "**Ingot**, stored and asked for, no worker", ""),
            Row("leaves asked", "**Ingot**, stored and asked for", ""),
            Row("leaves done", "**Ingot**, converted and fetched", ""),
            Row("leaves again", "**Ingot**, the same again", ""),
        ),
    ),
)
WHOLE_LEAST: Final = 0.7
FILES_LEAST: Final = 50.0


def render(found: Measurements) -> list[str]:
    """All tables of what was measured, and the goals."""
    lines: list[str] = []
    for table in TABLES:
        if rows := [row for row in table.rows if found.has(row.name)]:
            lines += [f"### {table.title}", "", table.about, "", *table_lines(table, rows, found), ""]
    return [*lines, "### Goals of PDFs", "", *(f"- {line}" for line in judge(found))]


def judge(found: Measurements) -> Iterator[str]:
    """A line for each goal of what was measured."""
    for whole, alone, what in (("whole", "alone", "books"), ("manuals whole", "manuals alone", "manuals")):
        if found.has(whole, alone):
            ratio = found.ratio(whole, alone)
            text = f"{what} the whole way at least {WHOLE_LEAST:g} × the converter alone; found {ratio:.2f} ×"
            yield goal_line(ratio >= WHOLE_LEAST, text)
    for name, what in (
        ("leaves stored", "stored and asked for"),
        ("leaves asked", "stored and asked for beside a worker"),
        ("leaves done", "converted and fetched"),
    ):
        if found.has(name):
            rate = found.middle(name)
            yield goal_line(
                rate >= FILES_LEAST, f"1,000 files {what} at least {FILES_LEAST:g} a second; found {rate:.0f}"
            )
