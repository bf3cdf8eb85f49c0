"""PDFs to convert: books of many pages with headings, lists and tables, and leaves of one page, no two the same."""

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
    """One PDF, the same for the same seed."""
    chance = random.Random(seed)
    story: list[Flowable] = []
    for number in range(1, pages + 1):
        story += _page(number, chance)
        story.append(PageBreak())
    document = SimpleDocTemplate(str(path), pagesize=A4, title=f"Volume {seed}", author="Ingot", invariant=True)
    document.build(story)


def books(folder: Path, *, count: int, pages: int) -> Path:
    """A folder of so many PDFs; one that is there already is taken."""
    made = folder / f"{count}x{pages}"
    if not made.exists():
        growing = folder / f"{made.name}.part"
        growing.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            write(growing / f"{number:04}.pdf", pages=pages, seed=number)
        growing.rename(made)
    return made


def pages_of(path: Path) -> int:
    """How many pages a PDF has."""
    document = pypdfium2.PdfDocument(path)
    try:
        return len(document)
    finally:
        document.close()


def _page(number: int, chance: random.Random) -> list[Flowable]:
    def sentence() -> str:
        return " ".join(chance.choices(WORDS, k=chance.randint(8, 18))).capitalize() + "."

    def paragraph() -> Paragraph:
        return Paragraph(" ".join(sentence() for _ in range(6)), STYLES["BodyText"])

    rows = [[chance.choice(WORDS), str(chance.randint(1, 9999))] for _ in range(6)]
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
