"""What `ingot` says when something is wrong, how it ends then, and what it teaches."""

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
from tests.system.shell import Shell, shell
from tests.waiting import SECONDS_MAX

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with shell(tmp_path_factory.mktemp("place")) as made:
        yield made


@contextmanager
def answering(status: int, body: str) -> Iterator[str]:
    """Something that answers the same to everybody."""

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


def told(place: Shell, *words: str, **environment: str) -> tuple[int, str]:
    """How a command that fails ends, and what it says: a sentence and a hint, and nothing that looks like data."""
    done = place.run(*words, **environment)
    assert done.stdout == ""
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["ingot", "Hint"], done.stderr
    return done.code, done.stderr


def test_an_unreachable_server_is_reported(place: Shell, unused_tcp_port: int) -> None:
    code, said = told(place, "jobs", "list", "--server", f"http://127.0.0.1:{unused_tcp_port}")
    assert (code, f":{unused_tcp_port}" in said, "INGOT_SERVER_URL" in said) == (6, True, True)


def test_a_server_that_is_not_ingot_is_reported(place: Shell) -> None:
    for status, body in ((200, "<html>Hello.</html>"), (404, "<html>Not here.</html>")):
        with answering(status, body) as url:
            code, said = told(place, "jobs", "list", "--server", url)
            assert (code, "Ingot" in said, "INGOT_SERVER_URL" in said) == (10, True, True)


def test_an_older_server_is_reported(place: Shell) -> None:
    problem = '{"status": 404, "code": "no_such_route", "detail": "there is no GET /api/v1/jobs", "hint": "Look."}'
    with answering(404, problem) as url:
        code, said = told(place, "jobs", "list", "--server", url)
    assert (code, "GET /api/v1/jobs" in said, "version" in said) == (10, True, True)


def test_an_invalid_server_url_is_reported(place: Shell) -> None:
    code, said = told(place, "jobs", "list", INGOT_SERVER_URL="localhost:8080")
    assert (code, "'localhost:8080'" in said) == (2, True)


def test_a_missing_token_and_a_wrong_one_are_reported(place: Shell) -> None:
    code, said = told(place, "jobs", "list", INGOT_DATA="elsewhere")
    assert (code, "INGOT_TOKEN" in said, "--token-file" in said) == (7, True, True)
    wrong = "ingot_" + "a" * 60
    code, said = told(place, "jobs", "list", INGOT_TOKEN=wrong)
    assert (code, "INGOT_TOKEN" in said, wrong not in said) == (7, True, True)
    code, said = told(place, "jobs", "list", "--token-file", "nowhere.token")
    assert (code, "nowhere.token" in said) == (2, True)


def test_unknown_jobs_tenants_and_settings_are_reported(place: Shell) -> None:
    code, said = told(place, "jobs", "show", new_id())
    assert code == 3
    code, said = told(place, "jobs", "show", "../admin/tenants")
    assert (code, "../admin/tenants" in said) == (3, True)
    code, said = told(place, "jobs", "list", "--tenant", "nobody")
    assert code == 3
    code, said = told(place, "jobs", "submit", "x", INGOT_TENNANT="acme")
    assert (code, "INGOT_TENNANT is not a setting" in said and "INGOT_TENANT?" in said) == (1, True)


def test_unknown_commands_and_options_exit_with_2(place: Shell) -> None:
    for words in (["jobz"], ["jobs", "lits"], ["jobs", "list", "--colour"], ["jobs", "show"]):
        done = place.run(*words)
        assert (done.code, done.stdout, "Usage: ingot" in done.stderr) == (2, "", True)


# -- what it teaches ----------------------------------------------------------------------------------------


def verbs(command: object, *names: str) -> Iterator[tuple[str, ...]]:
    """All that can be typed."""
    if not isinstance(command, TyperGroup):
        yield names
        return
    context = typer.Context(command)
    for name in command.list_commands(context):
        yield from verbs(command.get_command(context, name), *names, name)


COMMANDS = [*verbs(typer.main.get_command(cli.app))]


def test_the_cli_page_lists_exactly_the_existing_commands() -> None:
    rows = re.findall(r"^\| `ingot ([a-z -]+)[`\[A-Z…]", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(row.strip() for row in rows) == sorted(" ".join(names) for names in COMMANDS)


def test_the_cli_page_and_the_help_list_every_exit_code(place: Shell) -> None:
    known = {*cli.EXIT_CODES_BY_STATUS.values(), *cli.EXIT_CODES_BY_ERROR.values(), 0, 1, 130}
    rows = re.findall(r"^\| (\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {int(row) for row in rows} == known | {141}
    said = place.ok("--help").partition("Exit codes:")[2].partition("Examples")[0]
    assert {int(number) for number in re.findall(r"\b\d+\b", said)} == known


def test_every_client_command_has_examples_and_the_common_options() -> None:
    for names in COMMANDS:
        if names[0] in ("serve", "worker", "dev", "database"):
            continue
        command = typer.main.get_command(cli.app)
        for name in names:
            assert isinstance(command, TyperGroup)
            found = command.get_command(typer.Context(command), name)
            assert found is not None
            command = found
        assert command.epilog is not None, names
        assert "$ ingot " in command.epilog, names
        options = {option for parameter in command.params for option in parameter.opts}
        assert {"--server", "--token-file", "--tenant", "--json"} <= options, names
        assert "--token" not in options, "it would be seen by everybody on the machine"


@pytest.fixture(scope="module")
def script(place: Shell) -> str:
    """What sets up the completion of bash."""
    done = subprocess.run(
        ["bash", "-c", f"{INGOT} --show-completion; true"],
        env=place.environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=True,
    )  # fmt: skip
    assert "complete -o default -F _ingot_completion ingot" in done.stdout
    return done.stdout


def offered(place: Shell, script: str, *words: str) -> list[str]:
    """What bash offers for the last of these words."""
    typed = " ".join(f"'{word}'" for word in ("ingot", *words))
    asked = f"COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _ingot_completion {INGOT}"
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{asked}\n" + 'printf "%s\\n" "${COMPREPLY[@]}"'],
        cwd=place.folder, env=place.environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=True,
    )  # fmt: skip
    return done.stdout.split()


def test_a_shell_completes_commands_statuses_and_priorities(place: Shell, script: str) -> None:
    assert offered(place, script, "jobs", "ca") == ["cancel"]
    assert offered(place, script, "jobs", "list", "--status", "d") == ["dead"]
    assert offered(place, script, "jobs", "submit", "x", "--priority", "h") == ["high"]


def test_completion_suggests_job_types_only_if_the_server_responds_quickly(
    place: Shell, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.submit("completed.first")
    assert any(offered(place, script, "jobs", "submit", "compl") == ["completed.first"] for _ in range(3))
    monkeypatch.setitem(place.environment, "INGOT_SERVER_URL", "http://192.0.2.1")
    assert offered(place, script, "jobs", "submit", "compl") == [], "and when it is not, one is not kept waiting"
