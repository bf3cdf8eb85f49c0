"""Find or install the servers, programs, model and PDFs of the tests, which would take too long in a test.

Prints a message for each missing component, and exits with 1 if there is one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Final

from tests.faults.pgbouncer import program as pgbouncer
from tests.minilm import weights
from tests.pdf_corpus import corpus
from tests.postgres import binaries
from tests.providers.programs import browser, curl, fonts, git, modules, nginx, node, tesseract
from tests.s3 import program as seaweed

FINDERS: Final = (
    binaries,
    pgbouncer,
    node,
    modules,
    browser,
    seaweed,
    weights,
    corpus,
    tesseract,
    fonts,
    curl,
    git,
    nginx,
)


def missing(finders: Iterable[Callable[[], object]] = FINDERS) -> list[str]:
    """Find or install each component. Return a message for each missing one, without duplicates."""
    sentences: dict[str, None] = {}
    for find in finders:
        try:
            find()
        except AssertionError as error:
            sentences[str(error)] = None
    return list(sentences)


if __name__ == "__main__":
    sentences = missing()
    for sentence in sentences:
        print(sentence, file=sys.stderr)
    sys.exit(1 if sentences else 0)
