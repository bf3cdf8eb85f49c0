"""Bugs planted in the command line, and in the client that it stands on."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        name="a question that nobody hears is taken for a yes",
        breaks="what is done to all jobs that fit is done when somebody said so",
        file="cli/confirm.py",
        old="    if not sys.stdin.isatty() or not sys.stderr.isatty():\n",
        new="    if not sys.stdin.isatty():\n        return\n    if not sys.stderr.isatty():\n",
        caught_by="tests/system/test_cli_jobs.py::test_a_filter_is_looked_at_first_and_done_only_when_told",
    ),
    Mutant(
        name="a name that leads elsewhere",
        breaks="what is asked of a thing by its name is asked of that thing, whatever the name has in it",
        file="client/paths.py",
        old="quote(part, safe='')",
        new="part",
        caught_by="tests/http/test_client.py::test_a_name_with_anything_in_it_is_that_of_nothing_else",
    ),
]
