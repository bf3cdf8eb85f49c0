"""A pytest plugin for runs against a copy of the package: sees to it that the copy is what is tested.

Hypothesis looks for a failure in the same examples every time, and does not look for a smaller one.
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
