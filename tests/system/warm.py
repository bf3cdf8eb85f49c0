"""`ingot`, read from disk once and forked for each command: the same program, without the time that reading takes.

It reads one JSON document to a line, which says what is typed and where, and answers each with its number and an exit
code.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any, NoReturn

import ingot.cli.blobs
import ingot.cli.doctor
import ingot.cli.events
import ingot.cli.ingest
import ingot.cli.jobs
import ingot.cli.tenants
import ingot.cli.tokens
import ingot.cli.workers

FLAGS = (os.O_RDONLY, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_APPEND)


def become(asked: dict[str, Any]) -> NoReturn:
    """Run what was typed, as a process of its own would."""
    code = 1
    try:
        for number, (name, flags) in enumerate(zip(("stdin", "stdout", "stderr"), FLAGS, strict=True)):
            os.dup2(os.open(asked[name], flags), number)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115 - it ends with them
        os.chdir(asked["folder"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        sys.argv = ["ingot", *asked["words"]]
        ingot.cli.main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    for line in sys.stdin:
        asked = json.loads(line)
        if (pid := os.fork()) == 0:
            become(asked)
        print(asked["number"], os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
