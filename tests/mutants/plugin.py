"""A pytest plugin for runs against a copy of the package, which checks that the copy is tested.

Hypothesis uses the same examples in every run, and does not shrink failures.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import Phase, settings

import ingot

COPY_VARIABLE = "INGOT_TEST_COPY"


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Refuse to test anything but the copy."""
    copy = Path(os.environ[COPY_VARIABLE]).resolve()
    imported = Path(ingot.__file__).resolve()
    if not imported.is_relative_to(copy):
        raise pytest.UsageError(f"ingot was imported from {imported}, not from {copy}")
    settings.register_profile(
        "mutants", parent=settings(), derandomize=True, database=None, phases=[Phase.explicit, Phase.generate]
    )
    settings.load_profile("mutants")
