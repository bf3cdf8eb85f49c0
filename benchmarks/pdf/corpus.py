"""Generates different PDFs: books of many pages with headings, lists and tables, and leaves of one page."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import pypdfium2
from reportlab.lib import colors
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import getSampleStyleSheet
from reportlab.platypus import ListFlowable, PageBreak, Paragraph, SimpleDocTemplate, Table, TableStyle
from reportlab.platypus.flowables import Flowable

TEXT: Final = (
    "ingot furnace ladle mould slag alloy copper iron tin crucible cast pour cool anneal temper quench grain billet "
    "ore smelt flux draught bellows hearth tongs anvil hammer ring vein assay weigh measure mark store carry load"
)
WORDS: Final = TEXT.split()
STYLES: Final = getSampleStyleSheet()
RULED: Final = TableStyle([("GRID", (0, 0), (-1, -1), 0.5, colors.black)])


def write(path: Path, *, pages: int, seed: int) -> None:
    """Write a PDF, which is the same for the same seed."""
    generator = random.Random(seed)
    story: list[Flowable] = []
    for number in range(1, pages + 1):
        story += _page(number, generator)
        story.append(PageBreak())
    document = SimpleDocTemplate(str(path), pagesize=A4, title=f"Volume {seed}", author="Ingot", invariant=True)
    document.build(story)


def books(folder: Path, *, count: int, pages: int) -> Path:
    """Return a folder with this number of PDFs. It is generated if it does not exist."""
    corpus = folder / f"{count}x{pages}"
    if not corpus.exists():
        partial_folder = folder / f"{corpus.name}.part"
        partial_folder.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            write(partial_folder / f"{number:04}.pdf", pages=pages, seed=number)
        partial_folder.rename(corpus)
    return corpus


def pages_of(path: Path) -> int:
    """Return the number of pages of a PDF."""
    document = pypdfium2.PdfDocument(path)
    try:
        return len(document)
    finally:
        document.close()


def _page(number: int, generator: random.Random) -> list[Flowable]:
    def sentence() -> str:
        return " ".join(generator.choices(WORDS, k=generator.randint(8, 18))).capitalize() + "."

    def paragraph() -> Paragraph:
        return Paragraph(" ".join(sentence() for _ in range(6)), STYLES["BodyText"])

    rows = [[generator.choice(WORDS), str(generator.randint(1, 9999))] for _ in range(6)]
    return [
        Paragraph(f"{number}. {sentence()}", STYLES["Heading1"]),
        paragraph(),
        paragraph(),
        ListFlowable([Paragraph(sentence(), STYLES["BodyText"]) for _ in range(4)], bulletType="bullet"),
        Paragraph(sentence(), STYLES["Heading2"]),
        paragraph(),
        Table([["what", "how much"], *rows], style=RULED),
        paragraph(),
    ]
