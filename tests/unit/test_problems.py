"""Error responses: the delay before a retry, and texts for the reader who gets them."""

from __future__ import annotations

import msgspec
import pytest

from ingot.http.problems import problem_of
from ingot.http.protocol import RETRY_SECONDS, Stopping
from ingot.kernel.errors import (
    IngotError,
    InvalidInput,
    OutcomeUnknown,
    StorageFull,
    StoreBusy,
    StoreError,
    StoreMisconfigured,
)


@pytest.mark.parametrize(
    ("error", "delay"),
    [
        (StoreError(), "1"),
        (StoreBusy(), "1"),
        (OutcomeUnknown(), "1"),
        (Stopping(), str(RETRY_SECONDS)),
        (InvalidInput(), None),
        (StoreMisconfigured(), None),
    ],
)
def test_every_unavailable_response_has_a_delay(error: IngotError, delay: str | None) -> None:
    assert problem_of(error)[1].get("retry-after") == delay


@pytest.mark.parametrize("kind", [StoreMisconfigured, StorageFull])
def test_details_for_the_operator_are_not_sent_to_callers(kind: type[IngotError]) -> None:
    status, _, body = problem_of(kind("The role press is not permitted to log in.", hint="Check INGOT_DATABASE_URL."))
    problem = msgspec.json.decode(body)
    assert (status, problem["code"], problem["detail"]) == (kind.status, kind.code, kind.title())
    assert "operator" in problem["hint"]
    assert "INGOT_" not in problem["hint"]
