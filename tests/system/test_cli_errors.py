"""Error messages and exit codes of `ingot`, its help, and shell completion."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperGroup

from ingot import cli
from ingot.kernel.ids import new_id
from tests.system.programs import INGOT
from tests.system.shell import Shell, open_shell
from tests.waiting import SECONDS_MAX

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with open_shell(tmp_path_factory.mktemp("shell")) as shell:
        yield shell


@contextmanager
def fixed_response(status: int, body: str) -> Iterator[str]:
    """Run a server with the same response to every request."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


def run_failing(shell: Shell, *arguments: str, **environment: str) -> tuple[int, str]:
    """Run a command that fails with a message and a hint on stderr only. Return the exit code and stderr."""
    done = shell.run(*arguments, **environment)
    assert done.stdout == ""
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["ingot", "Hint"], done.stderr
    return done.code, done.stderr


def test_an_unreachable_server_is_reported(shell: Shell, unused_tcp_port: int) -> None:
    code, message = run_failing(shell, "jobs", "list", "--server", f"http://127.0.0.1:{unused_tcp_port}")
    assert (code, f":{unused_tcp_port}" in message, "INGOT_SERVER_URL" in message) == (6, True, True)


def test_a_server_that_is_not_ingot_is_reported(shell: Shell) -> None:
    for status, body in ((200, "<html>Hello.</html>"), (404, "<html>Not here.</html>")):
        with fixed_response(status, body) as url:
            code, message = run_failing(shell, "jobs", "list", "--server", url)
            assert (code, "Ingot" in message, "INGOT_SERVER_URL" in message) == (10, True, True)


def test_an_older_server_is_reported(shell: Shell) -> None:
    problem = '{"status": 404, "code": "no_such_route", "detail": "there is no GET /api/v1/jobs", "hint": "Look."}'
    with fixed_response(404, problem) as url:
        code, message = run_failing(shell, "jobs", "list", "--server", url)
    assert (code, "GET /api/v1/jobs" in message, "version" in message) == (10, True, True)


def test_an_invalid_server_url_is_reported(shell: Shell) -> None:
    code, message = run_failing(shell, "jobs", "list", INGOT_SERVER_URL="localhost:8080")
    assert (code, "'localhost:8080'" in message) == (2, True)


def test_a_missing_token_and_a_wrong_one_are_reported(shell: Shell) -> None:
    code, message = run_failing(shell, "jobs", "list", INGOT_DATA="elsewhere")
    assert (code, "INGOT_TOKEN" in message, "--token-file" in message) == (7, True, True)
    wrong = "ingot_" + "a" * 60
    code, message = run_failing(shell, "jobs", "list", INGOT_TOKEN=wrong)
    assert (code, "INGOT_TOKEN" in message, wrong not in message) == (7, True, True)
    code, message = run_failing(shell, "jobs", "list", "--token-file", "nowhere.token")
    assert (code, "nowhere.token" in message) == (2, True)


def test_unknown_jobs_tenants_and_settings_are_reported(shell: Shell) -> None:
    code, message = run_failing(shell, "jobs", "show", new_id())
    assert code == 3
    code, message = run_failing(shell, "jobs", "show", "../admin/tenants")
    assert (code, "../admin/tenants" in message) == (3, True)
    code, message = run_failing(shell, "jobs", "list", "--tenant", "nobody")
    assert code == 3
    code, message = run_failing(shell, "jobs", "submit", "x", INGOT_TENNANT="acme")
    assert (code, "INGOT_TENNANT is not a setting" in message and "INGOT_TENANT?" in message) == (1, True)


def test_unknown_commands_and_options_exit_with_2(shell: Shell) -> None:
    for arguments in (["jobz"], ["jobs", "lits"], ["jobs", "list", "--colour"], ["jobs", "show"]):
        done = shell.run(*arguments)
        assert (done.code, done.stdout, "Usage: ingot" in done.stderr) == (2, "", True)


# -- help and completion-------------------------------------------------------------------------------------


def commands_of(command: object, *names: str) -> Iterator[tuple[str, ...]]:
    """Yield the names of all commands."""
    if not isinstance(command, TyperGroup):
        yield names
        return
    context = typer.Context(command)
    for name in command.list_commands(context):
        yield from commands_of(command.get_command(context, name), *names, name)


COMMANDS = [*commands_of(typer.main.get_command(cli.app))]


def test_the_cli_page_lists_exactly_the_existing_commands() -> None:
    rows = re.findall(r"^\| `ingot ([a-z][a-z -]*)[`\[A-Z…]", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(row.strip() for row in rows) == sorted(" ".join(names) for names in COMMANDS)


def test_the_cli_page_and_the_help_list_every_exit_code(shell: Shell) -> None:
    exit_codes = {*cli.EXIT_CODES_BY_STATUS.values(), *cli.EXIT_CODES_BY_ERROR.values(), 0, 1, 130}
    rows = re.findall(r"^\| (\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {int(row) for row in rows} == exit_codes | {141}
    message = shell.ok("--help").partition("Exit codes:")[2].partition("Examples")[0]
    assert {int(number) for number in re.findall(r"\b\d+\b", message)} == exit_codes


def test_every_client_command_has_examples_and_the_common_options() -> None:
    for names in COMMANDS:
        if names[0] in ("serve", "worker", "dev", "database"):
            continue
        command = typer.main.get_command(cli.app)
        for name in names:
            assert isinstance(command, TyperGroup)
            subcommand = command.get_command(typer.Context(command), name)
            assert subcommand is not None
            command = subcommand
        assert command.epilog is not None, names
        assert "$ ingot " in command.epilog, names
        options = {option for parameter in command.params for option in parameter.opts}
        assert {"--server", "--token-file", "--tenant", "--json"} <= options, names
        assert "--token" not in options, "other users of the machine could see the token"


@pytest.fixture(scope="module")
def script(shell: Shell) -> str:
    """The script that sets up completion in bash."""
    done = subprocess.run(
        ["bash", "-c", f"{INGOT} --show-completion; true"],
        env=shell.environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=True,
    )  # fmt: skip
    assert "complete -o default -F _ingot_completion ingot" in done.stdout
    return done.stdout


def completions(shell: Shell, script: str, *arguments: str) -> list[str]:
    """Return what bash suggests for the last word."""
    stdin_text = " ".join(f"'{word}'" for word in ("ingot", *arguments))
    completion_call = f"COMP_WORDS=({stdin_text}); COMP_CWORD={len(arguments)}; _ingot_completion {INGOT}"
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{completion_call}\n" + 'printf "%s\\n" "${COMPREPLY[@]}"'],
        cwd=shell.folder, env=shell.environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=True,
    )  # fmt: skip
    return done.stdout.split()


def test_a_shell_completes_commands_statuses_and_priorities(shell: Shell, script: str) -> None:
    assert completions(shell, script, "jobs", "ca") == ["cancel"]
    assert completions(shell, script, "jobs", "list", "--status", "d") == ["dead"]
    assert completions(shell, script, "jobs", "submit", "x", "--priority", "h") == ["high"]


def test_completion_suggests_job_types_only_if_the_server_responds_quickly(
    shell: Shell, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.submit("completed.first")
    assert any(completions(shell, script, "jobs", "submit", "compl") == ["completed.first"] for _ in range(3))
    monkeypatch.setitem(shell.environment, "INGOT_SERVER_URL", "http://192.0.2.1")
    assert completions(shell, script, "jobs", "submit", "compl") == [], "completion waited for an unreachable server"
