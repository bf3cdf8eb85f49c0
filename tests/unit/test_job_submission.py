"""`ingot jobs submit --from`: the size of its requests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ingot.cli.job_submission import submit_in_requests
from ingot.http.buffers import TooManyBytes
from ingot.http.problems import BodyTooLarge
from ingot.kernel.errors import IngotError


def submit_with_limit(orders: list[dict[str, Any]], bytes_max: int, error: IngotError) -> list[int]:
    """Submit these orders to a client that accepts requests up to this size, and return the sizes of the requests."""

    def submit_orders(request: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if sum(len(order["payload"]) for order in request) > bytes_max:
            raise error
        return request

    client = SimpleNamespace(submit_orders=submit_orders)
    context: Any = SimpleNamespace(open_client=lambda **_: client, retrying_client=client)
    requests: list[Any] = list(submit_in_requests(context, iter(orders)))
    assert [order for request in requests for order in request] == orders
    return [len(request) for request in requests]


@pytest.mark.parametrize("error", [BodyTooLarge(), TooManyBytes()])
def test_requests_that_are_too_large_are_halved(error: IngotError) -> None:
    orders = [{"payload": "x" * 100, "idempotency_key": str(n)} for n in range(1200)]
    assert set(submit_with_limit(orders, 20_000, error)) == {125, 75}


def test_one_job_that_is_too_large_is_refused() -> None:
    with pytest.raises(BodyTooLarge):
        submit_with_limit([{"payload": "x"}, {"payload": "x" * 11}], 10, BodyTooLarge())
