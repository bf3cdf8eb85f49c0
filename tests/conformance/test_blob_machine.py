"""Random lives of blobs on both engines and both stores."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.conformance.machines.blob_rules import WHERE, live

# `make soak` lives a thousand lives in each place.
EXAMPLES = {"sqlite-local": 8}
EXAMPLES_ELSEWHERE = 3
SOAKS = settings().max_examples > settings.get_profile("ingot").max_examples
pytestmark = [pytest.mark.long, *[pytest.mark.timeout(0)] * SOAKS]


@pytest.mark.parametrize("where", WHERE)
def test_blobs_live_as_their_model_does(where: str) -> None:
    live(where, examples=settings().max_examples if SOAKS else EXAMPLES.get(where, EXAMPLES_ELSEWHERE))
