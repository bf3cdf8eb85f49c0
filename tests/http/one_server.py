"""Run many cases on one server, for tests whose cases leave nothing behind."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from functools import wraps
from typing import Any

Test = Callable[..., Awaitable[None]]


def on_one_server(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test for every case as `pytest.mark.parametrize` does, with the same fixtures for all of them.

    Every case runs, even after failures. The failures are reported together, each with its case.
    """
    rows = [(case,) if isinstance(names, str) else tuple(case) for case in cases]
    keys = (names,) if isinstance(names, str) else names

    def decorate(test: Test) -> Test:
        @wraps(test)
        async def run_all(**fixtures: Any) -> None:
            failures: dict[str, str] = {}
            for number, case in enumerate(rows):
                values = dict(zip(keys, case, strict=True))
                try:
                    await test(**fixtures, **values)
                except Exception as error:
                    failures[f"{number}: {_short(values)}"] = f"{type(error).__name__}: {error}"
            assert failures == {}, "\n\n".join(f"{case}\n{failure}" for case, failure in failures.items())
            assert rows, "there is no case"

        signature = inspect.signature(test)
        fixtures = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        run_all.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return run_all

    return decorate


def _short(values: object) -> str:
    text = repr(values)
    return text if len(text) <= 200 else f"{text[:200]}…"
