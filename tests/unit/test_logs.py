"""Logs on standard error: format, levels and fields, without values of local variables."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from datetime import datetime

import pytest

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


def test_a_logged_error_has_a_traceback_without_local_variables() -> None:
    completed = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=50)
    assert completed.stdout == ""
    assert "it_failed" in completed.stderr
    assert "ValueError: no" in completed.stderr
    assert "j1" in completed.stderr
    assert "a secret value" not in completed.stderr


def test_logs_that_a_program_configured_are_kept() -> None:
    program = "import structlog\nstructlog.configure(processors=[])\n" + PROGRAM.split("secret", maxsplit=1)[0]
    program += "print(structlog.get_config()['processors'])"
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    assert completed.stdout.strip() == "[]"


SERVER = """
import logging, sys, warnings
import structlog
from ingot.kernel.logs import configure_server_logs, context_fields, report
configure_server_logs({level!r}, {form!r})
log = structlog.get_logger("x")
"""


def lines_of(program: str, *, level: str = "info", form: str | None = None) -> list[str]:
    """The lines that a program logs."""
    whole = SERVER.format(level=level, form=form) + program
    completed = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=True, timeout=50)
    assert completed.stdout == ""
    return completed.stderr.splitlines()


def test_a_log_line_is_a_json_object_outside_a_terminal() -> None:
    (line,) = lines_of("log.info('job_done', job_id='j1', when=range(2))")
    logged = json.loads(line)
    assert datetime.fromisoformat(logged.pop("timestamp")).tzinfo is not None
    assert logged == {"level": "info", "message": "job_done", "job_id": "j1", "when": "range(0, 2)"}


def test_text_logs_can_be_selected() -> None:
    (line,) = lines_of("log.info('job_done', job_id='j1')", form="text")
    assert "job_done" in line
    assert "job_id=j1" in line
    assert not line.startswith("{")


TEXT_EVENT = (
    "context_fields.set({'job_id': 'j1', 'job_type': 'greet'})\n"
    "log.warning('job_failed', text='job failed: no', error='no', traceback='  File x\\n    no()', hint='try again')"
)


def test_a_sentence_replaces_the_event_name_and_the_fields_in_text_but_not_in_json() -> None:
    line, *details = lines_of(TEXT_EVENT, form="text")
    assert line.endswith(f"Z  warning  {'job failed: no':40}  greet j1")
    assert details == ["      File x", "        no()", "    Hint: try again"]
    (line,) = lines_of(TEXT_EVENT)
    assert json.loads(line).items() >= {"message": "job_failed", "error": "no", "job_id": "j1"}.items()
    assert "text" not in json.loads(line)


def test_control_characters_are_not_written_in_text() -> None:
    program = "log.info('a', text='\\x1b[2J\\x1b[1mbold\\rb\\u202ec')\nlog.info('x\\x1b]0;title\\x07', y='\\x9b')"
    first, second = lines_of(program, form="text")
    assert first.endswith("\ufffd[2J\x1b[1mbold\ufffdb\ufffdc\x1b[0m")
    assert (second.count("\ufffd"), "\x1b" in second) == (3, False)


@pytest.mark.parametrize("variables", [{"TERM": "xterm"}, {"TERM": "xterm", "NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_levels_are_colored_on_a_terminal_that_supports_it(variables: dict[str, str]) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", SERVER.format(level="info", form=None) + TEXT_EVENT]
    subprocess.run(command, stderr=theirs, check=True, timeout=50, env={**os.environ, "NO_COLOR": "", **variables})
    os.close(theirs)
    with open(ours, "rb", buffering=0) as terminal:
        line = terminal.read(4096).decode().splitlines()[0]
    plain = re.sub("\x1b\\[[0-9;]*m", "", line)
    assert re.fullmatch(f"\\d\\d:\\d\\d:\\d\\d  warning  {'job failed: no':40}  greet j1", plain)
    assert ("\x1b[33mwarning" in line) == (variables == {"TERM": "xterm"})


def test_messages_below_the_level_are_not_logged() -> None:
    program = "log.debug('a')\nlog.info('b')\nlogging.getLogger('uvicorn.error').info('c')\nlog.warning('d')"
    assert [json.loads(line)["message"] for line in lines_of(program, level="warning")] == ["d"]


def test_messages_of_libraries_have_the_same_format() -> None:
    program = "logging.getLogger('uvicorn.error').warning('%s is slow', 'it')\nwarnings.warn('old')"
    first, second = [json.loads(line) for line in lines_of(program)]
    assert (first["message"], first["level"], first["logger"]) == ("it is slow", "warning", "uvicorn.error")
    assert "old" in second["message"]


def test_every_line_has_the_fields_of_its_request() -> None:
    program = (
        "context_fields.set({'request_id': 'r1', 'tenant_id': 't1'})\nlog.info('a')\nlog.info('b', tenant_id='t2')"
    )
    logged = [json.loads(line) for line in lines_of(program)]
    assert [(entry["request_id"], entry["tenant_id"]) for entry in logged] == [("r1", "t1"), ("r1", "t2")]


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


def test_an_exception_is_one_field_with_its_causes_and_without_row_values() -> None:
    for line in lines_of(FAILS):
        logged = json.loads(line)
        assert (logged["message"], logged["level"]) == ("it_failed", "error")
        error = logged["exception"]
        assert (error["type"], error["message"]) == ("KeyError", "'k'")
        assert "in inner" in error["stack"]
        assert "Refused: a row is wrong\nwhich led to:" in error["stack"]
        assert "canary" not in line
    assert "canary" not in "".join(lines_of(FAILS, form="text"))


def test_secrets_are_redacted_in_messages_and_fields() -> None:
    token, secret = new_token(new_id()), new_secret(WORKER_PREFIX)
    program = f"log.info('seen', header='Bearer {token}')\nlog.info('{secret}')\nlogging.warning('{token}.')"
    for form in ("json", "text"):
        lines = lines_of(program, form=form)
        assert len(lines) == 3
        assert [line for line in lines if token in line or secret in line] == []


def test_a_full_disk_loses_only_the_log_line() -> None:
    program = SERVER.format(level="info", form="json") + "log.info('lost')\nprint('on')"
    with open("/dev/full", "w", encoding="utf-8") as full:
        completed = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=full, check=True)
    assert completed.stdout == b"on\n"


def test_an_error_that_cannot_be_formatted_does_not_stop_the_program() -> None:
    program = "class Odd:\n    def __str__(self): raise RuntimeError\nreport('odd', ValueError(Odd()))\nlog.info('on')"
    assert json.loads(lines_of(program)[-1])["message"] == "on"
