"""Fixtures: a browser and a provider for all tests in the folder, and a site for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests import event_loop
from tests.browser.server_fixture import GROUPS, SharedBrowser, Site, open_shared_browser
from tests.processes import nothing_left_over


@pytest.fixture(scope="package", autouse=True)
def no_process_left_over() -> Iterator[None]:
    """Fail when a process outlives the folder: its modules share a browser and a provider."""
    with nothing_left_over():
        yield


@pytest.fixture(scope="package")
async def shared_browser(no_process_left_over: None) -> AsyncIterator[SharedBrowser]:
    """A browser and a provider that all tests share."""
    with event_loop.lasting_tasks():
        async with open_shared_browser() as shared:
            yield shared


@pytest.fixture
async def site(shared_browser: SharedBrowser, tmp_path: Path) -> AsyncIterator[Site]:
    """A server where `staff` can sign in as members and `ops` are operators. No browser may report a problem."""
    async with shared_browser.site(tmp_path, **GROUPS) as site:
        await site.served.give_groups(staff="member")
        yield site
        site.expect_no_problems()
