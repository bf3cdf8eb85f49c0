"""Fixtures: a world for all tests in the folder, and a place for each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests import event_loop
from tests.browser.server_fixture import GROUPS, Place, World, open_world
from tests.processes import nothing_left_over


@pytest.fixture(scope="package", autouse=True)
def no_process_left_over() -> Iterator[None]:
    """Fail when a process outlives the folder: its modules share a browser and a provider."""
    with nothing_left_over():
        yield


@pytest.fixture(scope="package")
async def world(no_process_left_over: None) -> AsyncIterator[World]:
    """A browser and a provider."""
    with event_loop.lasting_tasks():
        async with open_world() as one:
            yield one


@pytest.fixture
async def place(world: World, tmp_path: Path) -> AsyncIterator[Place]:
    """A server where staff may come in and are members, and ops are operators. All must be quiet in the end."""
    async with world.place(tmp_path, **GROUPS) as one:
        await one.served.give_groups(staff="member")
        yield one
        one.expect_quiet()
