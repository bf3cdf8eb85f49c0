"""Configuration of all tests: servers, markers, the event loop, the limit of long tests, and Hypothesis settings."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

from ingot.kernel.failures import failures
from tests import components, event_loop, time_report
from tests.minilm import shared_model
from tests.postgres import close_pools, release_databases, shared_folder
from tests.processes import mark_this_run, nothing_left_over
from tests.run_order import order_in_shares
from tests.s3 import shared_bucket_server
from tests.scratch import use_scratch_folder
from tests.signals import let_children_receive_signals
from tests.system.programs import end_warm_interpreter

LONG_TEST_SECONDS_MAX = 300

# Examples may be slow on a shared machine.
settings.register_profile(
    "ingot",
    deadline=None,
    derandomize=False,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("soak", parent=settings.get_profile("ingot"), max_examples=5_000)
settings.load_profile("ingot")

# Rendering a traceback with rich and all local variables can take a second, and tests log many errors on purpose.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)

SERVERS = pytest.StashKey[ExitStack]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--fast`."""
    parser.addoption("--fast", action="store_true", help="run only what `make check` does: SQLite and local files")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Create the folders of the shared servers in the controller process, and register the time report."""
    for component in components.COMPONENTS.values():
        config.addinivalue_line("markers", f"{component.marker}: {component.name} needed")
    config.pluginmanager.register(time_report, "time_report")
    let_children_receive_signals()
    mark_this_run()
    config.add_cleanup(end_warm_interpreter)
    if not hasattr(config, "workerinput"):
        use_scratch_folder(config)
        servers = config.stash[SERVERS] = ExitStack()
        servers.enter_context(shared_folder())
        servers.enter_context(shared_bucket_server())
        servers.enter_context(shared_model())
        config.add_cleanup(servers.close)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out folders of slow tests in a fast run."""
    return True if config.getoption("fast") and components.is_slow_folder(collection_path) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Add markers and time limits before pytest selects tests, and then order the selected ones."""
    for item in items:
        components.mark(item)
        if item.get_closest_marker("long") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_TEST_SECONDS_MAX))
    if config.getoption("fast"):
        config.hook.pytest_deselected(items=[item for item in items if components.is_slow(item)])
        items[:] = [item for item in items if not components.is_slow(item)]
    yield
    items[:] = order_in_shares(items)


@pytest.fixture(scope="module", autouse=True)
def no_process_left_over() -> Iterator[None]:
    """Fail when a process outlives the module that started it."""
    with nothing_left_over():
        yield


@pytest.fixture(scope="session", autouse=True)
async def shared_loop() -> AsyncIterator[None]:
    """One event loop for all tests of a process, so that connections to PostgreSQL outlive a test."""
    event_loop.share(asyncio.get_running_loop())
    yield
    await close_pools()
    event_loop.share(None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Store which components the test may use, and forget the failures that other tests have logged."""
    components.set_current(item)
    failures.clear()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Cancel the tasks that a test has left on the loop, and release its databases, after its fixtures."""
    event_loop.cancel_leftovers()
    release_databases()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Stop before the first test if a component is missing that a selected test needs."""
    if session.config.option.collectonly:
        return
    if missing := components.missing(components.needs(session.items)):
        if hasattr(session.config, "workerinput"):  # Only the controller prints, and it does not see markers.
            _missing_file().write_text("\n".join(missing))
            session.items.clear()
        else:
            pytest.exit(_missing_message(missing), returncode=pytest.ExitCode.INTERRUPTED)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop the servers when no worker uses them, and record CPU time before the report is printed."""
    components.set_current(None)
    end_warm_interpreter()
    if (servers := session.config.stash.get(SERVERS, None)) is not None:
        servers.close()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any) -> None:
    """Stop the run if a worker has reported a missing component."""
    if _missing_file().exists():
        node.config.pluginmanager.get_plugin("dsession").shouldstop = _missing_message(
            _missing_file().read_text().splitlines()
        )


def _missing_file() -> Path:
    return Path(os.environ[time_report.FOLDER_VARIABLE], "missing")


def _missing_message(missing: list[str]) -> str:
    return "\n".join(["selected tests cannot run:", *missing])
