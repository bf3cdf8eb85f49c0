"""The document handlers with the real libraries: their outputs, results and errors."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import pypdfium2
import pytest
from PIL import Image
from reportlab.lib.utils import ImageReader
from reportlab.pdfgen.canvas import Canvas

from ingot.worker.handlers import ocr, pdf
from ingot.worker.handlers.documents import pdf_file, pictures, tesseract
from ingot.worker.job import NoRetry
from scripts.make_samples import FOLDER, scan
from tests.fake_job import FakeJob, install_converter
from tests.hostile_pdfs import good, huge_image, lying_count, many_pages, zip_bomb
from tests.providers.programs import fonts
from tests.providers.programs import tesseract as ensure_tesseract

WORDS = "The next meeting is in June."


def sample(name: str) -> bytes:
    return (FOLDER / f"{name}.pdf").read_bytes()


def handle_pdf(folder: Path, source: bytes, **options: Any) -> tuple[dict[str, Any], FakeJob]:
    job = FakeJob(folder / "workdir", source, payload=options)
    return pdf.handle(job), job


def with_pictures(jpeg: bytes, times: int) -> bytes:
    buffer = io.BytesIO()
    canvas = Canvas(buffer, pagesize=(100, 100))
    canvas.drawString(10, 80, "Three times the same.")
    for number in range(times):
        canvas.drawImage(ImageReader(io.BytesIO(jpeg)), 20 * number, 20, 16, 16)
    canvas.save()
    return buffer.getvalue()


def hide_tesseract(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    tesseract.find_program.cache_clear()


@pytest.fixture(autouse=True)
def _forget_tesseract() -> None:
    tesseract.find_program.cache_clear()


def test_a_pdf_becomes_markdown_pictures_and_an_archive(tmp_path: Path) -> None:
    result, job = handle_pdf(tmp_path, sample("pictures"))
    names = ["sheet.md", "sheet-p001-1.png", "sheet-p002-1.png", "sheet.zip"]
    assert list(job.uploads) == names
    assert result == {
        "title": "Two Hills",
        "pages": 2,
        "markdown": "sheet.md",
        "archive": "sheet.zip",
        "images": 2,
        "images_only_in_archive": False,
        "ocr_pages": [],
        "pages_needing_ocr": [],
        "converter": "inspector",
        "converter_version": result["converter_version"],
    }
    assert job.stages == ["page 1 of 2", "page 2 of 2"]
    with zipfile.ZipFile(io.BytesIO(job.uploads["sheet.zip"])) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {
            name: job.uploads[name] for name in names[:-1]
        }
    assert Image.open(io.BytesIO(job.uploads["sheet-p001-1.png"])).size == (240, 120)


def test_selected_pages_without_images_are_converted(tmp_path: Path) -> None:
    result, job = handle_pdf(tmp_path, sample("pictures"), pages="2", images=False)
    assert (result["pages"], result["images"], list(job.uploads)) == (2, 0, ["sheet.md", "sheet.zip"])
    text = job.uploads["sheet.md"].decode()
    assert "Nobody has climbed both" in text
    assert "Two Hills\n" not in text.partition("---\n\n")[2]


def test_a_repeated_picture_is_stored_once(tmp_path: Path) -> None:
    jpeg = io.BytesIO()
    Image.new("RGB", (32, 32), "red").save(jpeg, "JPEG")
    result, job = handle_pdf(tmp_path, with_pictures(jpeg.getvalue(), 3))
    assert (result["images"], list(job.uploads)) == (1, ["sheet.md", "sheet-p001-1.jpg", "sheet.zip"])
    assert job.uploads["sheet-p001-1.jpg"] == jpeg.getvalue(), "a JPEG is extracted unchanged"


def test_many_pictures_are_only_in_the_archive(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    canvas = Canvas(buffer, pagesize=(100, 100))
    for number in range(pdf.PICTURE_FILES_MAX + 1):
        canvas.drawImage(ImageReader(Image.new("RGB", (8, 8), (number, 9, 9))), 0, 0, 8, 8)
        canvas.drawString(9, 50, "words")
        canvas.showPage()
    canvas.save()
    result, job = handle_pdf(tmp_path, buffer.getvalue())
    assert (result["images"], result["images_only_in_archive"]) == (pdf.PICTURE_FILES_MAX + 1, True)
    assert list(job.uploads) == ["sheet.md", "sheet.zip"]
    with zipfile.ZipFile(io.BytesIO(job.uploads["sheet.zip"])) as archive:
        assert len(archive.namelist()) == pdf.PICTURE_FILES_MAX + 2


# -- OCR --------------------------------------------------------------------------------------------------------


@pytest.mark.fonts
@pytest.mark.tesseract
def test_a_scanned_page_is_read_with_ocr(tmp_path: Path) -> None:
    ensure_tesseract()
    result, job = handle_pdf(tmp_path, sample("scanned"))
    assert (result["ocr_pages"], result["pages_needing_ocr"], result["images"]) == ([1], [], 0)
    assert WORDS in job.uploads["sheet.md"].decode()


def test_a_scanned_page_without_ocr_is_marked_and_included_as_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_tesseract(monkeypatch)
    result, job = handle_pdf(tmp_path, sample("scanned"))
    assert (result["ocr_pages"], result["pages_needing_ocr"], result["images"]) == ([], [1], 1)
    assert "> **Page 1 is a picture of text that was not read:** tesseract is not installed on the worker." in (
        job.uploads["sheet.md"].decode()
    )
    without_ocr, _ = handle_pdf(tmp_path / "never", sample("scanned"), ocr="never")
    assert without_ocr["pages_needing_ocr"] == [1]


@pytest.mark.fonts
@pytest.mark.tesseract
def test_every_page_is_read_with_ocr_always(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure_tesseract()
    result, job = handle_pdf(tmp_path, good("Plain words on a page"), ocr="always")
    assert result["ocr_pages"] == [1]
    assert "Plain words on a page" in job.uploads["sheet.md"].decode()
    hide_tesseract(monkeypatch)
    with pytest.raises(NoRetry, match="apt-get install tesseract-ocr"):
        handle_pdf(tmp_path, good(), ocr="always")


def test_an_empty_page_needs_no_ocr(tmp_path: Path) -> None:
    assert handle_pdf(tmp_path, many_pages(1))[0]["pages_needing_ocr"] == []


@pytest.mark.fonts
@pytest.mark.tesseract
def test_a_language_that_is_not_installed_is_named(tmp_path: Path) -> None:
    ensure_tesseract()
    with pytest.raises(NoRetry, match=r"'tlh'.*eng.*apt-get install tesseract-ocr-tlh"):
        handle_pdf(tmp_path, sample("scanned"), languages=["tlh"])


def pictured(kind: str) -> bytes:
    fonts()
    buffer = io.BytesIO()
    sheet = scan()
    more = {"save_all": True, "append_images": [sheet]} if kind == "TIFF" else {}
    sheet.save(buffer, kind, **more)
    return buffer.getvalue()


@pytest.mark.fonts
@pytest.mark.tesseract
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP", "BMP", "PDF"])
def test_ocr_turns_images_and_scans_into_text(tmp_path: Path, kind: str) -> None:
    ensure_tesseract()
    source = sample("scanned") if kind == "PDF" else pictured(kind)
    job = FakeJob(tmp_path, source, name=f"scan.{kind.lower()}")
    result = ocr.handle(job)
    pages = 2 if kind == "TIFF" else 1
    assert (result["pages"], result["pages_not_read"], list(job.uploads)) == (pages, [], ["scan.txt", "scan.md"])
    text = job.uploads["scan.txt"].decode()
    assert text.count(WORDS) == pages == text.count("\f") + 1
    markdown = job.uploads["scan.md"].decode()
    assert markdown.startswith("---\ntitle: ")
    assert f"<!-- page {pages}, read by OCR -->" in markdown
    assert job.stages[-1] == f"page {pages} of {pages}"


@pytest.mark.fonts
@pytest.mark.tesseract
def test_ocr_without_tesseract_names_the_package_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_tesseract(monkeypatch)
    tesseract.installed_languages.cache_clear()
    with pytest.raises(NoRetry, match="apt-get install tesseract-ocr"):
        ocr.handle(FakeJob(tmp_path, pictured("PNG"), name="scan.png"))


@pytest.mark.fonts
@pytest.mark.tesseract
@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"", "the file is empty"),
        (b"hello", "PNG, JPEG, TIFF, WEBP, BMP and PDF"),
        (b"GIF89a" + bytes(100), "PNG, JPEG, TIFF, WEBP, BMP and PDF"),
        (sample("encrypted"), "encrypted"),
    ],
)
def test_ocr_rejects_files_that_are_not_images(tmp_path: Path, source: bytes, message: str) -> None:
    ensure_tesseract()
    with pytest.raises(NoRetry, match=message):
        ocr.handle(FakeJob(tmp_path, source, name="scan.png"))


@pytest.mark.fonts
@pytest.mark.tesseract
def test_a_truncated_image_is_reported_as_damaged(tmp_path: Path) -> None:
    ensure_tesseract()
    with pytest.raises(NoRetry, match="damaged: page 1 cannot be decoded"):
        ocr.handle(FakeJob(tmp_path, pictured("PNG")[:2000], name="scan.png"))


@pytest.mark.fonts
@pytest.mark.tesseract
def test_an_image_with_too_many_pixels_is_not_decoded(tmp_path: Path) -> None:
    ensure_tesseract()
    buffer = io.BytesIO()
    Image.new("1", (1, 1)).save(buffer, "BMP")
    huge = bytearray(buffer.getvalue())
    huge[18:26] = (20_000).to_bytes(4, "little") * 2
    with pytest.raises(NoRetry, match="20000 × 20000 pixels"):
        ocr.handle(FakeJob(tmp_path, bytes(huge), name="wall.bmp"))


# -- rejected files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"", "the file is empty: it has 0 bytes"),
        (b"plain words", "the file is not a PDF"),
        (zip_bomb(), "the file is not a PDF: it looks like a ZIP archive"),
        (many_pages(0), "its pages cannot be found"),
        (many_pages(pdf_file.PAGES_MAX + 1), "20001 pages"),
        (sample("encrypted"), "the file is encrypted; remove its password"),
        (sample("damaged"), "the file is damaged"),
        (good()[:300], "the file is damaged"),
        (huge_image(), "page 1 .* 50000 × 50000 pixels"),
    ],
    ids=["empty", "text", "zip", "no pages", "pages", "encrypted", "damaged", "cut off", "huge image"],
)
def test_a_file_that_cannot_be_converted_fails_with_its_reason(tmp_path: Path, source: bytes, message: str) -> None:
    with pytest.raises(NoRetry, match=message):
        handle_pdf(tmp_path, source)


def test_a_huge_page_is_rendered_at_the_maximum_resolution() -> None:
    document = pypdfium2.PdfDocument(good().replace(b"[0 0 300 300]", b"[0 0 14400 14400]"))
    drawn = pictures.render_page(document[0], 1, dpi=600)
    assert 0.9 * pictures.RENDERED_PIXELS_MAX < drawn.width * drawn.height <= 1.01 * pictures.RENDERED_PIXELS_MAX


# -- converters -------------------------------------------------------------------------------------------------


def test_a_file_that_the_first_converter_cannot_read_is_given_to_the_second(tmp_path: Path) -> None:
    result, job = handle_pdf(tmp_path, lying_count())
    assert result["converter"] == "pdfium"
    assert "A good page." in job.uploads["sheet.md"].decode()


def test_the_plain_text_converter_can_be_selected(tmp_path: Path) -> None:
    result, job = handle_pdf(tmp_path, sample("handbook"), converter="pdfium")
    text = job.uploads["sheet.md"].decode()
    assert result["converter"] == "pdfium"
    assert "The last one out turns the key twice." in text
    assert "# " not in text


def test_a_converter_of_an_installed_package_is_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(install_converter(tmp_path / "packages"))
    result, job = handle_pdf(tmp_path, good(), converter="counting")
    assert (result["converter"], result["converter_version"]) == ("counting", "7")
    assert "Text of page 1." in job.uploads["sheet.md"].decode()


@pytest.mark.parametrize(
    "name", ["docling", "os:system", "ingot.worker.handlers.documents.pdfium_converter:PlainText", ""]
)
def test_a_converter_that_is_not_installed_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(NoRetry, match=r"not installed .* inspector, pdfium"):
        handle_pdf(tmp_path, good(), converter=name)
