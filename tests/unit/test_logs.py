"""Logs on standard error, without the values of local variables."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime

from ingot.identity.credential_secrets import WORKER_PREFIX, new_secret, new_token
from ingot.kernel.ids import new_id

PROGRAM = """
import structlog
from ingot.kernel.logs import configure_logs
configure_logs()
secret = "a secret value"
try:
    raise ValueError("no")
except ValueError:
    structlog.get_logger("x").exception("it_failed", job_id="j1")
"""


def test_a_logged_error_shows_its_traceback_but_no_local_variable() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=50)
    assert ran.stdout == ""
    assert "it_failed" in ran.stderr
    assert "ValueError: no" in ran.stderr
    assert "j1" in ran.stderr
    assert "a secret value" not in ran.stderr


def test_a_program_that_set_its_logs_up_keeps_them() -> None:
    program = "import structlog\nstructlog.configure(processors=[])\n" + PROGRAM.split("secret", maxsplit=1)[0]
    program += "print(structlog.get_config()['processors'])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    assert ran.stdout.strip() == "[]"


SERVER = """
import logging, sys, warnings
import structlog
from ingot.kernel.logs import configure_server_logs, request_fields, report
configure_server_logs({level!r}, {form!r})
log = structlog.get_logger("x")
"""


def lines_of(program: str, *, level: str = "info", form: str | None = None) -> list[str]:
    """What a program logs."""
    whole = SERVER.format(level=level, form=form) + program
    ran = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=True, timeout=50)
    assert ran.stdout == ""
    return ran.stderr.splitlines()


def test_away_from_a_terminal_a_line_is_one_json_object() -> None:
    (line,) = lines_of("log.info('job_done', job_id='j1', when=range(2))")
    told = json.loads(line)
    assert datetime.fromisoformat(told.pop("timestamp")).tzinfo is not None
    assert told == {"level": "info", "message": "job_done", "job_id": "j1", "when": "range(0, 2)"}


def test_text_is_for_who_asks_for_it() -> None:
    (line,) = lines_of("log.info('job_done', job_id='j1')", form="text")
    assert "job_done" in line
    assert "job_id=j1" in line
    assert not line.startswith("{")


def test_what_is_below_the_level_is_not_logged() -> None:
    program = "log.debug('a')\nlog.info('b')\nlogging.getLogger('uvicorn.error').info('c')\nlog.warning('d')"
    assert [json.loads(line)["message"] for line in lines_of(program, level="warning")] == ["d"]


def test_what_libraries_log_goes_the_same_way() -> None:
    program = "logging.getLogger('uvicorn.error').warning('%s is slow', 'it')\nwarnings.warn('old')"
    first, second = [json.loads(line) for line in lines_of(program)]
    assert (first["message"], first["level"], first["logger"]) == ("it is slow", "warning", "uvicorn.error")
    assert "old" in second["message"]


def test_every_line_says_what_it_is_about() -> None:
    program = (
        "request_fields.set({'request_id': 'r1', 'tenant_id': 't1'})\nlog.info('a')\nlog.info('b', tenant_id='t2')"
    )
    told = [json.loads(line) for line in lines_of(program)]
    assert [(one["request_id"], one["tenant_id"]) for one in told] == [("r1", "t1"), ("r1", "t2")]


FAILS = """
class Refused(Exception):
    pass
def inner(payload):
    raise Refused("a row is wrong\\nDETAIL:  Failing row contains (" + payload + ").")
try:
    try:
        inner("canary")
    except Refused as error:
        raise KeyError("k") from error
except KeyError as error:
    report("it_failed", error)
    log.exception("it_failed")
    logging.getLogger("asyncio").error("it_failed", exc_info=True)
"""


def test_an_exception_is_one_field_with_its_causes_and_no_values() -> None:
    for line in lines_of(FAILS):
        told = json.loads(line)
        assert (told["message"], told["level"]) == ("it_failed", "error")
        error = told["exception"]
        assert (error["type"], error["message"]) == ("KeyError", "'k'")
        assert "in inner" in error["stack"]
        assert "Refused: a row is wrong\nwhich led to:" in error["stack"]
        assert "canary" not in line
    assert "canary" not in "".join(lines_of(FAILS, form="text"))


def test_a_secret_is_hidden_wherever_it_was_put() -> None:
    token, secret = new_token(new_id()), new_secret(WORKER_PREFIX)
    program = f"log.info('seen', header='Bearer {token}')\nlog.info('{secret}')\nlogging.warning('{token}.')"
    for form in ("json", "text"):
        lines = lines_of(program, form=form)
        assert len(lines) == 3
        assert [line for line in lines if token in line or secret in line] == []


def test_a_line_that_finds_the_disk_full_is_lost_and_nothing_else() -> None:
    program = SERVER.format(level="info", form="json") + "log.info('lost')\nprint('on')"
    with open("/dev/full", "w", encoding="utf-8") as full:
        ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=full, check=True)
    assert ended.stdout == b"on\n"


def test_a_log_that_cannot_be_written_stops_nobody() -> None:
    program = "class Odd:\n    def __str__(self): raise RuntimeError\nreport('odd', ValueError(Odd()))\nlog.info('on')"
    assert json.loads(lines_of(program)[-1])["message"] == "on"
