"""What every test shares: the event loop, the time limit of long tests, and Hypothesis settings."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, settings

from tests import loops
from tests.minilm import shared_model
from tests.postgres import close_pools, shared_folder
from tests.s3 import shared_bucket_server
from tests.scratch import use_scratch_folder

LONG_TEST_SECONDS_MAX = 300

# Shared machines stall; a slow example is not a wrong one.
settings.register_profile(
    "ingot",
    deadline=None,
    derandomize=False,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("soak", parent=settings.get_profile("ingot"), max_examples=5_000)
settings.load_profile("ingot")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """The process that starts the workers makes room for their servers, and clears up after them."""
    if not hasattr(config, "workerinput"):
        use_scratch_folder(config)
        room = ExitStack()
        room.enter_context(shared_folder())
        room.enter_context(shared_bucket_server())
        room.enter_context(shared_model())
        config.add_cleanup(room.close)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests marked `long` their own limit, and start them first so that no worker ends with one alone."""
    for item in items:
        if item.get_closest_marker("long") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_TEST_SECONDS_MAX))
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture(scope="session", autouse=True)
async def shared_loop() -> AsyncIterator[None]:
    """One event loop for all tests of a process: connections to PostgreSQL outlive a test."""
    loops.share(asyncio.get_running_loop())
    yield
    await close_pools()
    loops.share(None)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """End the tasks that a test has left on the loop, after its fixtures."""
    loops.cancel_leftovers()
