"""Planted bugs of the handlers of documents."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CHECKPOINTS = "tests/unit/test_document_checkpoints.py"
HANDLERS = "tests/unit/test_document_handlers.py"
DOCUMENTS = "worker/handlers/documents"

MUTANTS = [
    Mutant(
        name="pages of another document",
        breaks="what was kept of another file, or with other options, is not used",
        file=f"{DOCUMENTS}/checkpoints.py",
        old="part.header != self._header or ",
        new="",
        caught_by=f"{CHECKPOINTS}::test_checkpoints_of_another_file_or_other_options_are_ignored",
    ),
    Mutant(
        name="parts that do not follow",
        breaks="no page is left out and none is there twice",
        file=f"{DOCUMENTS}/checkpoints.py",
        old=" or part.first != len(self.pages)",
        new="",
        caught_by=f"{CHECKPOINTS}::test_a_checkpoint_out_of_order_is_ignored",
    ),
    Mutant(
        name="a part without what came before the first page",
        breaks="a part holds all pages since the last one",
        file=f"{DOCUMENTS}/checkpoints.py",
        old="pages=self.pages[self._saved_page_count :]",
        new="pages=self.pages[-1:]",
        caught_by=f"{CHECKPOINTS}::test_a_checkpoint_contains_all_pages_since_the_previous_one",
    ),
    Mutant(
        name="pictures that only the first attempt had",
        breaks="pictures of pages that an earlier attempt did are there",
        file=f"{DOCUMENTS}/converting.py",
        old="            self._write_pictures(page.figures)\n        for number",
        new="            pass\n        for number",
        caught_by=f"{CHECKPOINTS}::test_pictures_of_earlier_attempts_are_in_the_archive",
    ),
    Mutant(
        name="pictures decoded whatever their size",
        breaks="a picture that is too large is refused before it is decoded",
        file=f"{DOCUMENTS}/pictures.py",
        old="    if width * height > PICTURE_PIXELS_MAX:\n",
        new="    if False:\n",
        caught_by=f"{HANDLERS}::test_an_image_with_too_many_pixels_is_not_decoded",
    ),
]
