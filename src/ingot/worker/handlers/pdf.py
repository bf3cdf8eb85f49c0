"""The handler `pdf`: converts a PDF to Markdown with its pictures, and adds an archive of all outputs."""

from __future__ import annotations

from typing import Any, Final

from ingot.worker.handlers.documents import preload as _preload  # noqa: F401
from ingot.worker.handlers.documents.converting import convert
from ingot.worker.handlers.documents.options import PdfOptions, read_document_options
from ingot.worker.handlers.inputs import MARKDOWN_CONTENT_TYPE, only_input
from ingot.worker.job import WorkerJob

PICTURE_FILES_MAX: Final = 200  # If there are more, they are stored only in the archive.
LISTED_PAGES_MAX: Final = 2_000  # In the result of the job. The Markdown lists all pages.


def handle(job: WorkerJob) -> dict[str, Any]:
    """Convert the only input of a job. Raises `NoRetry` if it cannot be converted."""
    options = read_document_options(job.payload, PdfOptions)
    name = only_input(job.inputs)
    path = job.download()
    folder = job.workdir() / "outputs"
    folder.mkdir(exist_ok=True)
    document = convert(path, options, name=name, folder=folder, progress=job)
    listed_pictures = document.pictures if len(document.pictures) <= PICTURE_FILES_MAX else []
    job.upload(document.markdown, document.markdown.name, MARKDOWN_CONTENT_TYPE)
    for file in (*listed_pictures, document.archive):
        job.check()
        job.upload(file, file.name)
    result: dict[str, Any] = {
        "title": document.title,
        "pages": document.pages,
        "markdown": document.markdown.name,
        "archive": document.archive.name,
        "images": len(document.pictures),
        "images_only_in_archive": len(listed_pictures) < len(document.pictures),
        "ocr_pages": document.ocr_pages[:LISTED_PAGES_MAX],
        "pages_needing_ocr": document.pages_needing_ocr[:LISTED_PAGES_MAX],
        "converter": document.converter,
        "converter_version": document.version,
    }
    if document.pictures_left_out:
        result["images_left_out"] = document.pictures_left_out
    if document.resumed_at is not None:
        result["resumed_at"] = document.resumed_at
    return result
