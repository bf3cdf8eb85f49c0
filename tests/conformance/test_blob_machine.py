"""Random lives of blobs on both engines and both object stores."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.conformance.machines.blob_rules import WHERE, live

# `make soak` runs a thousand lives on each combination.
EXAMPLES = {"sqlite-local": 8}
EXAMPLES_DEFAULT = 3
SOAKS = settings().max_examples > settings.get_profile("ingot").max_examples
pytestmark = [pytest.mark.long, *[pytest.mark.timeout(0)] * SOAKS]


@pytest.mark.parametrize("where", WHERE)
def test_blobs_behave_like_their_model(where: str) -> None:
    live(where, examples=settings().max_examples if SOAKS else EXAMPLES.get(where, EXAMPLES_DEFAULT))
