"""`ingot doctor`: each problem that it finds, and its hint."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ingot.engines.sqlite import SQLiteStore
from ingot.identity import Tenants
from ingot.kernel.clock import ManualClock
from ingot.kernel.ids import new_id
from tests.postgres import database_for, empty_database
from tests.s3 import ACCESS_KEY, SECRET_KEY, bucket, client_of, server_url
from tests.system.shell import Shell, open_shell


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with open_shell(tmp_path_factory.mktemp("shell")) as shell:
        yield shell


def run_doctor(shell: Shell, *arguments: str, **environment: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the checks by name; of two checks with one name, the worse one."""
    done = shell.run("doctor", "--json", *arguments, **environment)
    report = json.loads(done.stdout)
    assert report["ok"] == (done.code == 0)
    worst = {"ok": 0, "warning": 1, "failed": 2}
    checks = sorted(report["checks"], key=lambda check: worst[check["state"]])
    assert all(check["hint"] for check in checks if check["state"] != "ok"), "a check has no hint"
    return done.code, {check["name"]: check for check in checks}


def test_doctor_reports_no_problem_for_a_working_setup(shell: Shell) -> None:
    code, checks = run_doctor(shell)
    assert code == 0
    assert {name: check["state"] for name, check in checks.items()} == dict.fromkeys(
        ("program", "settings", "data folder", "server", "version", "protocol", "clock", "token"), "ok"
    )
    assert "default" in checks["token"]["detail"]
    lines = shell.ok("doctor").splitlines()
    assert {line.split()[0] for line in lines} == {"ok"}
    assert len(lines) == len(checks)


def test_doctor_names_every_invalid_setting(shell: Shell) -> None:
    done = shell.run("doctor", INGOT_PORT="http", INGOT_LEASE_SECONDS="0", INGOT_THEME="dark")
    assert done.code == 1
    for message in ("INGOT_PORT must be", "INGOT_LEASE_SECONDS must be", "INGOT_THEME"):
        assert message in done.stdout
    assert "server" not in done.stdout.replace("INGOT_SERVER", ""), "the server was checked with invalid settings"
    code, checks = run_doctor(shell, INGOT_OIDC_ISSUER="https://login.example.com")
    assert (code, "INGOT_OIDC_CLIENT_ID" in checks["settings"]["detail"]) == (1, True)
    code, checks = run_doctor(shell, INGOT_SERVER="x")
    assert (code, checks["settings"]["state"]) == (0, "warning")
    assert "INGOT_SERVER_URL" in checks["settings"]["hint"]


def test_doctor_reports_an_unusable_data_folder(shell: Shell) -> None:
    (shell.folder / "a file").write_text("", encoding="utf-8")
    token = {"INGOT_TOKEN": (shell.folder / "data" / "operator.token").read_text(encoding="utf-8").strip()}
    code, checks = run_doctor(shell, INGOT_DATA="a file", **token)
    assert (code, "cannot be written to" in checks["data folder"]["detail"]) == (1, True)
    assert "INGOT_DATA" in checks["data folder"]["hint"]
    code, checks = run_doctor(shell, INGOT_DATA="not yet", **token)
    assert (code, checks["data folder"]["state"]) == (0, "ok")


async def test_doctor_warns_of_stored_times_in_the_future(shell: Shell, tmp_path: Path) -> None:
    clock = ManualClock(datetime.now(UTC) + timedelta(hours=30))
    store = await SQLiteStore.open(tmp_path / "ahead", clock=clock, lease_seconds=60)
    await Tenants(store).ensure_default()
    await store.close()
    token = (shell.folder / "data" / "operator.token").read_text(encoding="utf-8").strip()
    code, checks = await asyncio.to_thread(run_doctor, shell, INGOT_DATA=str(tmp_path / "ahead"), INGOT_TOKEN=token)
    assert (code, checks["database"]["state"]) == (0, "warning")
    assert "1 day" in checks["database"]["detail"]


def test_doctor_warns_of_a_token_file_that_others_can_read(shell: Shell) -> None:
    token = shell.folder / "data" / "operator.token"
    token.chmod(0o644)
    try:
        code, checks = run_doctor(shell)
    finally:
        token.chmod(0o600)
    assert (code, checks["data folder"]["state"], "chmod 600" in checks["data folder"]["hint"]) == (0, "warning", True)


def test_doctor_reports_an_unreachable_server(shell: Shell, unused_tcp_port: int) -> None:
    code, checks = run_doctor(shell, "--server", f"http://127.0.0.1:{unused_tcp_port}")
    assert (code, checks["server"]["state"], "token" in checks) == (1, "failed", False)
    assert "ingot serve" in checks["server"]["hint"]


def test_doctor_reports_a_wrong_token_and_a_wrong_worker_credential(shell: Shell) -> None:
    secret = f"ingotw_{'a' * 60}"
    code, checks = run_doctor(
        shell, INGOT_TOKEN=f"ingot_{new_id()}", INGOT_WORKER_ID="press", INGOT_WORKER_SECRET=secret
    )
    assert (code, checks["token"]["state"], checks["worker credential"]["state"]) == (1, "failed", "failed")
    assert secret not in json.dumps(checks)
    code, checks = run_doctor(shell, INGOT_WORKER_ID="press")
    assert (code, "INGOT_WORKER_SECRET is not" in checks["worker credential"]["detail"]) == (1, True)
    made = shell.json("workers", "credentials", "create", "press")
    code, checks = run_doctor(shell, INGOT_WORKER_ID="press", INGOT_WORKER_SECRET=made["secret"])
    assert (code, checks["worker credential"]["state"]) == (0, "ok")
    code, checks = run_doctor(
        shell, INGOT_WORKER_ID="press", INGOT_WORKER_SECRET=made["secret"], INGOT_DATA="elsewhere"
    )
    assert (code, checks["token"]["state"]) == (0, "ok"), "a worker with a credential was asked for a token"
    code, checks = run_doctor(shell, INGOT_DATA="elsewhere")
    assert (code, "INGOT_TOKEN" in checks["token"]["hint"]) == (1, True)


@pytest.mark.postgres
async def test_doctor_checks_a_database_without_changing_it(shell: Shell, tmp_path: Path) -> None:
    good, empty = await database_for(tmp_path), await empty_database()
    code, checks = run_doctor(shell, INGOT_DATABASE_URL=good.server_url)
    assert (code, checks["database"]["state"]) == (0, "ok")
    owner = {"INGOT_DATABASE_URL": empty.server_url, "INGOT_DATABASE_OWNER_URL": empty.owner_url}
    code, checks = run_doctor(shell, **owner)
    assert (code, checks["database"]["state"]) == (1, "failed"), "doctor migrated the database"
    code, checks = run_doctor(shell, INGOT_DATABASE_URL=good.owner_url)
    assert (code, "must be ingot_server" in checks["database"]["detail"]) == (1, True)


def test_doctor_reports_an_unreachable_database_without_its_password(shell: Shell) -> None:
    url = "postgresql://ingot_server:hush@127.0.0.1:1/ingot"
    code, checks = run_doctor(shell, INGOT_DATABASE_URL=url)
    assert (code, checks["database"]["state"], checks["token"]["state"]) == (1, "failed", "ok")
    assert "hush" not in json.dumps(checks)


@pytest.mark.s3
def test_doctor_checks_a_bucket(shell: Shell, unused_tcp_port: int) -> None:
    known = {
        "INGOT_S3_BUCKET": bucket(),
        "INGOT_S3_ENDPOINT": server_url(),
        "INGOT_S3_ACCESS_KEY": ACCESS_KEY,
        "INGOT_S3_SECRET_KEY": SECRET_KEY,
        "INGOT_S3_PREFIX": f"doctor-{new_id()}",
    }
    code, checks = run_doctor(shell, **known)
    assert (code, checks["bucket"]["state"]) == (0, "ok")
    assert "Contents" not in client_of(server_url()).list_objects_v2(Bucket=bucket(), Prefix=known["INGOT_S3_PREFIX"])
    wrong = {
        "INGOT_S3_SECRET_KEY": "wrong",
        "INGOT_S3_BUCKET": "not-there",
        "INGOT_S3_ENDPOINT": f"http://127.0.0.1:{unused_tcp_port}",
    }
    for name, value in wrong.items():
        code, checks = run_doctor(shell, **known | {name: value})
        assert (code, checks["bucket"]["state"], name in checks["bucket"]["hint"]) == (1, "failed", True)


def test_doctor_reports_a_disk_without_spare_space(shell: Shell) -> None:
    code, checks = run_doctor(shell, INGOT_SPARE_BYTES=str(1024**4))
    assert (code, checks["data folder"]["state"]) == (1, "failed")
    assert "INGOT_SPARE_BYTES" in checks["data folder"]["hint"]
    assert run_doctor(shell, INGOT_SPARE_BYTES="0")[0] == 0
    code, checks = run_doctor(shell, INGOT_SPARE_BYTES=str(1024**4 + 1))
    assert (code, "INGOT_SPARE_BYTES" in checks["settings"]["detail"]) == (1, True)
