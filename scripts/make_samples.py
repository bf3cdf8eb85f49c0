"""Generates the PDFs in `samples`, always with the same bytes. `make samples` runs it.

It needs the DejaVu fonts (Debian's package fonts-dejavu-core). The used characters are embedded in the files.
"""

from __future__ import annotations

import io
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from PIL import Image, ImageDraw, ImageFont
from reportlab.lib import colors, pdfencrypt
from reportlab.lib.enums import TA_RIGHT
from reportlab.lib.pagesizes import A5
from reportlab.lib.styles import ParagraphStyle, getSampleStyleSheet
from reportlab.lib.utils import ImageReader
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import (
    BaseDocTemplate,
    Flowable,
    Frame,
    ListFlowable,
    PageBreak,
    PageTemplate,
    Paragraph,
    Spacer,
    Table,
)
from reportlab.platypus import Image as Picture

FOLDER: Final = Path(__file__).parents[1] / "samples"
FONTS: Final = Path("/usr/share/fonts/truetype/dejavu")
MARGIN: Final = 48
GAP: Final = 24
SEED: Final = 9
STYLES: Final = getSampleStyleSheet()
PLAIN, TITLE, FIRST, SECOND = (STYLES[name] for name in ("BodyText", "Title", "Heading1", "Heading2"))
PLAIN.spaceAfter, TITLE.fontSize, TITLE.leading = 6, 24, 30
TO_THE_RIGHT: Final = ParagraphStyle(
    "right", parent=PLAIN, alignment=TA_RIGHT, fontName="DejaVu", fontSize=12, leading=18
)

HANDBOOK: Final = (
    "A workshop is a place where things are made, mended and put back on their shelves. This handbook says how "
    "ours is kept: who opens it in the morning, where the tools hang, and what to do when something breaks.",
    "Read the first page before you begin. <b>Never leave a running machine alone</b>, and write down what you "
    "took in the <i>green book</i> beside the door. Whoever finds a mistake in these pages may "
    "<b><i>mend it at once</i></b>.",
    "Small repairs are done on the same day. For anything larger, ask the person whose name is on the board; "
    "there is always one, even on holidays.",
)
COLUMNS: Final = (
    "The river begins in the hills as three small springs. In the first years of the village nobody had given them "
    "names, because everybody knew which one was meant by the time of day at which the sun reached it.",
    "Later a mill was built below the place where the springs meet. Its wheel turned slowly, and the miller used to "
    "say that it counted the seasons better than any clock.",
    "When the railway came, the mill was sold to a baker. She kept the wheel, put an oven where the stones had been, "
    "and baked a bread so dark that travellers took it home as a present.",
    "Today the house is a school. The children learn to read the water level from a painted rod, and every spring "
    "they vote on a name for one more brook.",
)


class RightToLeftLine(Flowable):  # type: ignore[misc]
    """A line of right-to-left text in visual order: characters from left to right, the first word last."""

    def __init__(self, text: str, size: float = 12) -> None:
        super().__init__()
        self._words, self._size = text.split(), size

    def wrap(self, width: float, height: float) -> tuple[float, float]:
        """Return the width and height of the line."""
        self._width = width
        return width, 1.6 * self._size

    def draw(self) -> None:
        """Draw the line."""
        visual_text = " ".join(word if word.isascii() else word[::-1] for word in reversed(self._words))
        self.canv.setFont("DejaVu", self._size)
        self.canv.drawRightString(self._width, 0.4 * self._size, visual_text)


def main(folder: Path = FOLDER) -> None:
    """Write all samples to a folder."""
    folder.mkdir(exist_ok=True)
    pdfmetrics.registerFont(TTFont("DejaVu", str(FONTS / "DejaVuSans.ttf")))
    for name, generate in SAMPLES.items():
        (folder / f"{name}.pdf").write_bytes(generate())


def build_pdf(story: list[Flowable], *, title: str, columns: int = 1, secret: str | None = None) -> bytes:
    """Return a PDF with this content. With a `secret`, it is encrypted with this password."""
    pdf = io.BytesIO()
    width, height = A5
    column_width = (width - 2 * MARGIN - (columns - 1) * GAP) / columns
    frames = [
        Frame(MARGIN + number * (column_width + GAP), MARGIN, column_width, height - 2 * MARGIN, 0, 0, 0, 0)
        for number in range(columns)
    ]
    document = BaseDocTemplate(pdf, pagesize=A5, title=title, author="Ingot", invariant=1)
    if secret is not None:
        document.encrypt = pdfencrypt.StandardEncryption(secret, strength=128)
    document.addPageTemplates(PageTemplate(frames=frames))
    document.build(story)
    return pdf.getvalue()


def text(*paragraphs: str) -> list[Flowable]:
    """Return plain paragraphs."""
    return [Paragraph(paragraph, PLAIN) for paragraph in paragraphs]


def bullet_list(*items: str, numbered: bool = False) -> Flowable:
    """Return a list with bullets or numbers."""
    style = {"bulletType": "1", "bulletFormat": "%s."} if numbered else {"bulletType": "bullet", "start": "•"}
    return ListFlowable([Paragraph(item, PLAIN) for item in items], leftIndent=18, bulletFontSize=10, **style)


def handbook() -> bytes:
    """Return a PDF of two pages with headings, emphasis and lists."""
    story = [
        Paragraph("The Workshop Handbook", TITLE),
        Paragraph("Opening", FIRST),
        *text(*HANDBOOK[:2]),
        Paragraph("In the morning", SECOND),
        bullet_list("Unlock both doors.", "Switch on the light above the lathe.", "Look into the <i>green book</i>."),
        PageBreak(),
        Paragraph("Repairs", FIRST),
        *text(HANDBOOK[2]),
        Paragraph("In this order", SECOND),
        bullet_list("Stop the machine.", "Tell the others.", "Find the fault, and only then the tool.", numbered=True),
        Paragraph("Closing", FIRST),
        *text("The last one out turns the key twice."),
    ]
    return build_pdf(story, title="The Workshop Handbook")


def tables() -> bytes:
    """Return a PDF with a table that has lines around its cells, and one with only aligned columns."""
    ruled = Table(
        [
            ["Tool", "Shelf", "Pieces"],
            ["Hammer", "A 1", "4"],
            ["Pliers", "A 2", "11"],
            ["File, coarse", "C 7", "3"],
        ],
        colWidths=[120, 80, 60],
        hAlign="LEFT",
        style=[("GRID", (0, 0), (-1, -1), 0.7, colors.black), ("FONTNAME", (0, 0), (-1, 0), "Helvetica-Bold")],
    )
    aligned = Table(
        [
            ["Month", "Visitors", "Bread sold", "Rain (mm)"],
            ["January", "120", "310", "44"],
            ["February", "98", "275", "61"],
            ["March", "143", "402", "38"],
            ["April", "187", "455", "29"],
        ],
        colWidths=[80, 70, 80, 70],
        hAlign="LEFT",
        style=[("ALIGN", (1, 0), (-1, -1), "RIGHT"), ("FONTNAME", (0, 0), (-1, 0), "Helvetica-Bold")],
    )
    story = [
        Paragraph("What we have", TITLE),
        Paragraph("Tools", FIRST),
        *text("Every tool has its shelf. Who borrows one writes it down."),
        Spacer(1, 8),
        ruled,
        Spacer(1, 16),
        Paragraph("Figures", FIRST),
        *text("The first four months of the year, as they were counted at the door."),
        Spacer(1, 8),
        aligned,
    ]
    return build_pdf(story, title="What we have")


def columns() -> bytes:
    """Return a PDF with two columns of text."""
    story = [
        Paragraph("The River and the Mill", FIRST),
        *text(*COLUMNS),
        Paragraph("The wheel", FIRST),
        *text(*reversed(COLUMNS)),
    ]
    return build_pdf(story, title="The River and the Mill", columns=2)


def drawing(shade: tuple[int, int, int]) -> bytes:
    """Return a PNG of two hills and a sun."""
    image = Image.new("RGB", (240, 120), (236, 244, 250))
    draw = ImageDraw.Draw(image)
    draw.ellipse((170, 14, 214, 58), fill=(250, 190, 60))
    draw.polygon([(0, 120), (90, 40), (180, 120)], fill=shade)
    draw.polygon([(90, 120), (170, 66), (240, 120)], fill=tuple(part // 2 for part in shade))
    png = io.BytesIO()
    image.save(png, "PNG")
    return png.getvalue()


def pictures() -> bytes:
    """Return a PDF with pictures between paragraphs."""
    story = [
        Paragraph("Two Hills", TITLE),
        *text("The first hill stands in the north. In the morning it is green."),
        Picture(io.BytesIO(drawing((70, 150, 80))), width=180, height=90),
        *text("The second one looks red in the evening, when the sun is low."),
        PageBreak(),
        Paragraph("In the evening", FIRST),
        Picture(io.BytesIO(drawing((180, 70, 50))), width=180, height=90),
        *text("Nobody has climbed both on one day."),
    ]
    return build_pdf(story, title="Two Hills")


def scan() -> Image.Image:
    """Return the image of a scanned sheet, slightly rotated and with grey dots."""
    sheet = Image.new("L", (1100, 760), 250)
    draw = ImageDraw.Draw(sheet)
    large, plain = (ImageFont.truetype(str(FONTS / name), size) for name, size in SCAN_FONTS)
    draw.text((110, 90), "Minutes of the meeting", fill=25, font=large)
    for number, line in enumerate(SCANNED):
        draw.text((110, 190 + 48 * number), line, fill=35, font=plain)
    sheet = sheet.rotate(0.6, resample=Image.Resampling.BICUBIC, fillcolor=250)
    generator = random.Random(SEED)
    pixels = sheet.load()
    assert pixels is not None
    for _ in range(1500):
        pixels[generator.randrange(sheet.width), generator.randrange(sheet.height)] = generator.randrange(120, 220)
    return sheet


SCAN_FONTS: Final = (("DejaVuSans-Bold.ttf", 44), ("DejaVuSans.ttf", 30))
SCANNED: Final = (
    "The members met on the third of May at noon.",
    "Nine were present; two had sent a letter.",
    "",
    "It was agreed to paint the gate in blue, and to buy",
    "a second ladder before the winter comes.",
    "",
    "The next meeting is in June.",
)


def scanned() -> bytes:
    """Return a PDF whose page is the image of a text."""
    picture, pdf = io.BytesIO(), io.BytesIO()
    scan().save(picture, "JPEG", quality=45)
    canvas = Canvas(pdf, pagesize=(528, 365), invariant=1)
    canvas.setTitle("Minutes")
    canvas.drawImage(ImageReader(picture), 0, 0, 528, 365)
    canvas.save()
    return pdf.getvalue()


def right_to_left() -> bytes:
    """Return a PDF with a page in Hebrew, with numbers and a Latin name."""
    story = [
        RightToLeftLine("המדריך של בית המלאכה", 20),
        Spacer(1, 12),
        RightToLeftLine("בית המלאכה נפתח בכל בוקר בשעה 8 ונסגר בערב."),
        RightToLeftLine("הכלים נמצאים על המדף ליד הדלת הירוקה."),
        RightToLeftLine("מי שלוקח כלי כותב את שמו בספר."),
        Spacer(1, 12),
        RightToLeftLine("לפני העבודה", 16),
        Spacer(1, 6),
        RightToLeftLine("בודקים את האור, את המכונה ואת 12 הברגים."),
        RightToLeftLine("התוכנה Ingot שומרת את הרשימה."),
    ]
    return build_pdf(story, title="המדריך של בית המלאכה")


def encrypted() -> bytes:
    """Return a PDF that opens only with a password."""
    return build_pdf(text("Nobody reads this without the word."), title="Secret", secret="open sesame")


def damaged() -> bytes:
    """Return the first third of a PDF, with changed bytes."""
    content = bytearray(handbook())
    del content[len(content) // 3 :]
    for position in range(200, len(content), 97):
        content[position] ^= 0x5A
    return bytes(content)


SAMPLES: Final[dict[str, Callable[[], bytes]]] = {
    "handbook": handbook,
    "tables": tables,
    "columns": columns,
    "pictures": pictures,
    "scanned": scanned,
    "right-to-left": right_to_left,
    "encrypted": encrypted,
    "damaged": damaged,
}

if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
