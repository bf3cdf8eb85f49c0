"""Get the servers, the model and the PDFs of the tests before they run: installing one takes longer than a test may."""

from __future__ import annotations

import sys
from collections.abc import Callable

from tests.faults.bouncer import program
from tests.minilm import weights
from tests.pdf_corpus import corpus
from tests.postgres import binaries
from tests.providers.programs import browser, fonts, modules, node, tesseract
from tests.s3 import program as weed

if __name__ == "__main__":
    servers: tuple[Callable[[], object], ...] = (binaries, program, node, modules, browser, weed)
    for get in (*servers, weights, corpus, tesseract, fonts):
        try:
            get()
        except AssertionError as missing:  # The tests that need it fail and say so; the others can run.
            print(missing, file=sys.stderr)
