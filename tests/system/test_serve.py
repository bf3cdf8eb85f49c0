"""`ingot serve` as a process with a real socket and real signals."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from ingot.kernel.build import read_build
from ingot.worker.handlers import BUILT_IN_HANDLERS
from tests.postgres import PLAIN_TEMPLATE, own_server, with_database
from tests.system.programs import ingot, run_ingot, served, wait_for_url
from tests.waiting import until

OUTAGE_SECONDS = 3.0  # The pool of the driver tries to connect again after 1 second.
NO_DATABASE = {"INGOT_DATABASE_URL": "postgresql://ingot_server@127.0.0.1:1/ingot"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_exits_on_sigterm_and_sigint(tmp_path: Path, number: signal.Signals) -> None:
    with served(tmp_path / "data", cold=True) as (process, url):
        assert httpx.get(f"{url}/healthz", verify=False).json()["status"] == "ok"
        process.send_signal(number)
        assert process.wait(timeout=45) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/healthz", verify=False)


def test_the_first_start_creates_the_operator_token_and_later_starts_keep_it(tmp_path: Path) -> None:
    path = tmp_path / "data" / "operator.token"
    with served(tmp_path / "data") as (_, url):
        token = path.read_text(encoding="utf-8").strip()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        headers = {"authorization": f"Bearer {token}"}
        created = httpx.post(
            f"{url}/api/v1/jobs", headers=headers, json={"type": "noop", "payload": {"stored": True}}, verify=False
        )
        assert created.status_code == 201
    # The server was killed. Acknowledged jobs must be stored.
    with served(tmp_path / "data") as (_, url):
        assert path.read_text(encoding="utf-8").strip() == token
        job = httpx.get(f"{url}/api/v1/jobs/{created.json()['id']}", headers=headers, verify=False).json()
    assert (job["status"], job["payload"]) == ("queued", {"stored": True})


def test_built_in_handlers_have_definitions_that_operators_can_change(tmp_path: Path) -> None:
    path = tmp_path / "data" / "operator.token"
    changed_definition = {"shared": True, "timeout_seconds": 7, "reuse": False}
    for start in range(2):
        with served(tmp_path / "data") as (_, url):
            headers = {"authorization": f"Bearer {path.read_text(encoding='utf-8').strip()}"}
            definitions = {
                one["type"]: one
                for one in httpx.get(f"{url}/api/v1/definitions", headers=headers, verify=False).json()["items"]
            }
            assert definitions.keys() == BUILT_IN_HANDLERS.keys()
            for type, ours in BUILT_IN_HANDLERS.items():
                fields = [definitions[type][name] for name in ("tenant", "reuse", "timeout_seconds", "version")]
                if (type, start) == ("pdf", 1):
                    assert fields == [None, False, 7, ours.version]
                else:
                    assert fields == [None, ours.reuse, ours.timeout_seconds, ours.version]
            assert [type for type in definitions if not definitions[type]["reuse"]] == (
                ["embed", "pdf"] if start else ["embed"]
            )
            put = httpx.put(
                f"{url}/api/v1/admin/definitions/pdf", headers=headers, json=changed_definition, verify=False
            )
            assert put.status_code == 200, put.text


def test_new_token_creates_another_operator_token_and_keeps_the_first_valid(tmp_path: Path) -> None:
    path = tmp_path / "data" / "operator.token"
    with served(tmp_path / "data", "--new-token"):
        first = path.read_text(encoding="utf-8").strip()
    with served(tmp_path / "data", "--new-token") as (_, url):
        second = path.read_text(encoding="utf-8").strip()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        listed = [
            httpx.get(
                f"{url}/api/v1/admin/tokens",
                params={"operator": True},
                headers={"authorization": f"Bearer {token}"},
                verify=False,
            ).json()["items"]
            for token in (first, second)
        ]
    assert first != second
    assert [len(items) for items in listed] == [2, 2]


def test_the_version_option_prints_the_release_and_the_commit() -> None:
    done = run_ingot("--version", cold=True)
    assert done.code == 0
    assert done.stdout == f"ingot {read_build().version}\n"


@pytest.mark.parametrize(
    ("options", "environment", "code", "message"),
    [
        (["--host", "nowhere.invalid"], {}, 1, "--host"),
        (["--host", "192.0.2.1"], {}, 1, "this machine has no such address"),
        (["--host", ""], {}, 1, "--host"),
        (["--port", "70000"], {}, 2, "--port"),
        ([], {"INGOT_PORT": "70000"}, 1, "INGOT_PORT must be between 0 and 65535, got 70000"),
        ([], {**NO_DATABASE, "INGOT_DATABASE_WAIT_SECONDS": "0"}, 6, "127.0.0.1:1/ingot"),
        ([], {**NO_DATABASE, "INGOT_DATABASE_WAIT_SECONDS": "-1"}, 1, "INGOT_DATABASE_WAIT_SECONDS must be between"),
    ],
)
def test_invalid_settings_of_serve_are_reported_in_two_lines(
    tmp_path: Path, options: list[str], environment: dict[str, str], code: int, message: str
) -> None:
    port = [] if "--port" in options or "INGOT_PORT" in environment else ["--port", "0"]
    done = run_ingot("serve", *port, *options, cwd=tmp_path, env={**os.environ, **environment})
    assert done.code == code
    assert message in done.stderr
    assert "line " not in done.stderr  # Part of a traceback.
    if code != 2:  # Invalid options also print the usage.
        assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["ingot", "Hint"]


@pytest.mark.postgres
def test_a_server_waits_for_its_database(tmp_path: Path) -> None:
    with own_server() as database_server:
        database_server.stop()
        url = with_database(database_server.url, PLAIN_TEMPLATE, "ingot_server")
        environment = {**os.environ, "INGOT_DATABASE_URL": url}
        arguments = ("serve", "--data", str(tmp_path), "--port", "0")
        with ingot(*arguments, env=environment, stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            assert "waiting_for_database" in process.stderr.readline()
            database_server.start()
            address = wait_for_url(process)
            assert httpx.get(f"{address}/healthz", verify=False).json()["status"] == "ok"


@pytest.mark.postgres
def test_an_outage_of_the_database_is_logged_once_and_without_messages_of_the_driver(tmp_path: Path) -> None:
    with own_server() as database_server:
        url = with_database(database_server.url, PLAIN_TEMPLATE, "ingot_server")
        environment = {**os.environ, "INGOT_DATABASE_URL": url}
        with ingot("serve", "--data", str(tmp_path), "--port", "0", env=environment, stderr=subprocess.PIPE) as process:
            address = wait_for_url(process)
            database_server.stop("immediate")
            time.sleep(OUTAGE_SECONDS)
            database_server.start()
            until(lambda: httpx.get(f"{address}/healthz", verify=False).status_code == 200)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=45) == 0
            assert process.stderr is not None
            text = process.stderr.read()
    counts = [text.count(event) for event in ("database_lost", "database_back", "loop_failed", "listening_failed")]
    assert (counts, "connection floor" in text) == ([1, 1, 0, 0], False), text


def test_a_busy_port_is_reported_with_a_hint(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        done = run_ingot("serve", "--data", str(tmp_path / "data"), "--port", port)
    assert done.code == 1
    assert f"port {port}" in done.stderr
    assert "Hint: Choose another port" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_data_folder_in_use_is_reported_with_a_hint(tmp_path: Path) -> None:
    with served(tmp_path / "data"):
        done = run_ingot("serve", "--data", str(tmp_path / "data"), "--port", "0")
    assert done.code == 6
    assert "Hint:" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unreachable_bucket_is_a_temporary_error_and_a_wrong_url_is_not(tmp_path: Path) -> None:
    variables = {"INGOT_S3_BUCKET": "files", "INGOT_S3_ACCESS_KEY": "a", "INGOT_S3_SECRET_KEY": "b"}
    for endpoint, code in (("http://127.0.0.1:9", 6), ("127.0.0.1:9", 1)):
        environment = {**os.environ, **variables, "INGOT_S3_ENDPOINT": endpoint}
        done = run_ingot("serve", "--data", str(tmp_path), "--port", "0", env=environment)
        assert (done.code, "INGOT_S3_ENDPOINT" in done.stderr) == (code, True)
