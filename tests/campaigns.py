"""Campaigns: tests that `make test` runs on a sample, and `make soak` in full."""

from __future__ import annotations

import os
from typing import Final

WHOLE_VARIABLE: Final = "INGOT_TEST_WHOLE"
IS_WHOLE: Final = WHOLE_VARIABLE in os.environ
TESTS: Final = (
    "tests/conformance/test_machines.py",
    "tests/faults/test_postgres_outages.py",
    "tests/http/test_generated_requests.py",
    "tests/system/test_pdf_corpus.py",
)
