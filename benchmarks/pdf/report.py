"""The tables of the report, and the goals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from benchmarks.blobs.measurements import Measurements
from benchmarks.blobs.report import Row, Table, goal_line, table_lines

BOOKS: Final = "Pages per second, books of many pages"
MANUALS: Final = "Pages per second, manuals of some Debian packages"
LEAVES: Final = "1,000 files of one page"
TABLES: Final = (
    Table(
        BOOKS,
        "pages/s",
        "On all cores. The complete process is one command, `ingot ingest --output`: files are hashed, uploaded, "
        "converted by an isolated worker, downloaded and written. Server, worker and command share the cores. A "
        "converter alone has one process per core. The output of the other converters has no headings and no tables.",
        (
            Row("alone", "Ingot's converter alone", "alone"),
            Row("whole", "**Ingot**, the complete process", "alone"),
            Row("markitdown", "markitdown alone", "alone"),
            Row("pdfplumber", "a loop of pdfplumber alone", "alone"),
        ),
    ),
    Table(
        MANUALS,
        "pages/s",
        "The same with real PDFs. If one failed, the run would fail.",
        (
            Row("manuals alone", "Ingot's converter alone", "manuals alone"),
            Row("manuals whole", "**Ingot**, the complete process", "manuals alone"),
        ),
    ),
    Table(
        LEAVES,
        "files/s",
        "`ingot ingest` of 1,000 files: until all are stored and submitted, without a worker and with one that uses "
        "the same cores; until the last is converted and downloaded; and again, when all results exist.",
        (
            Row("leaves stored", "**Ingot**, stored and submitted, no worker", ""),
            Row("leaves asked", "**Ingot**, stored and submitted", ""),
            Row("leaves done", "**Ingot**, converted and downloaded", ""),
            Row("leaves again", "**Ingot**, the same again, reused", ""),
        ),
    ),
)
COMPLETE_RATIO_MIN: Final = 0.7
FILES_PER_SECOND_MIN: Final = 50.0


def render(measurements: Measurements) -> list[str]:
    """Return the tables with measured values, and the goals."""
    lines: list[str] = []
    for table in TABLES:
        if rows := [row for row in table.rows if measurements.has(row.name)]:
            lines += [f"### {table.title}", "", table.about, "", *table_lines(table, rows, measurements), ""]
    return [*lines, "### Goals of PDFs", "", *(f"- {line}" for line in judge(measurements))]


def judge(measurements: Measurements) -> Iterator[str]:
    """Return a line for each goal whose values were measured."""
    for whole, alone, what in (("whole", "alone", "books"), ("manuals whole", "manuals alone", "manuals")):
        if measurements.has(whole, alone):
            ratio = measurements.ratio(whole, alone)
            text = f"{what}, complete, at least {COMPLETE_RATIO_MIN:g} × the converter alone; measured {ratio:.2f} ×"
            yield goal_line(ratio >= COMPLETE_RATIO_MIN, text)
    for name, what in (
        ("leaves stored", "stored and submitted"),
        ("leaves asked", "stored and submitted beside a worker"),
        ("leaves done", "converted and downloaded"),
    ):
        if measurements.has(name):
            rate = measurements.median(name)
            yield goal_line(
                rate >= FILES_PER_SECOND_MIN,
                f"1,000 files {what} at least {FILES_PER_SECOND_MIN:g} per second; measured {rate:.0f}",
            )
