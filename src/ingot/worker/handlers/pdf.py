"""PDF to Markdown: text, tables and pictures of a file, and one archive of all."""

from __future__ import annotations

from typing import Any, Final

from ingot.worker.handlers.documents import preload as _ahead  # noqa: F401
from ingot.worker.handlers.documents.converting import convert
from ingot.worker.handlers.documents.options import PdfOptions, read_document_options
from ingot.worker.handlers.inputs import MARKDOWN_CONTENT_TYPE, only_input
from ingot.worker.job import WorkerJob

PICTURE_FILES_MAX: Final = 200  # More are only in the archive.
LISTED_PAGES_MAX: Final = 2_000  # In a result; the Markdown names all.


def handle(job: WorkerJob) -> dict[str, Any]:
    """Convert the only input of a job. Raises `NoRetry` for what cannot be converted."""
    options = read_document_options(job.payload, PdfOptions)
    name = only_input(job.inputs)
    path = job.download()
    folder = job.workdir() / "made"
    folder.mkdir(exist_ok=True)
    made = convert(path, options, name=name, folder=folder, progress=job)
    listed = made.pictures if len(made.pictures) <= PICTURE_FILES_MAX else []
    job.upload(made.markdown, made.markdown.name, MARKDOWN_CONTENT_TYPE)
    for file in (*listed, made.archive):
        job.check()
        job.upload(file, file.name)
    result: dict[str, Any] = {
        "title": made.title,
        "pages": made.pages,
        "markdown": made.markdown.name,
        "archive": made.archive.name,
        "images": len(made.pictures),
        "images_only_in_archive": len(listed) < len(made.pictures),
        "ocr_pages": made.ocr_pages[:LISTED_PAGES_MAX],
        "pages_needing_ocr": made.pages_needing_ocr[:LISTED_PAGES_MAX],
        "converter": made.converter,
        "converter_version": made.version,
    }
    if made.pictures_left_out:
        result["images_left_out"] = made.pictures_left_out
    if made.resumed_at is not None:
        result["resumed_at"] = made.resumed_at
    return result
