"""Planted bugs that show a caller with a narrow grant something outside it, or let it change that."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

WORLDS = "tests/http/test_two_worlds.py::test_a_narrow_grant_neither_reveals_nor_changes_anything_outside_it[sqlite]"

MUTANTS = [
    Mutant(
        name="a summary that counts the jobs of all types",
        breaks="B10: a grant on one type reveals nothing of others",
        file="api/jobs.py",
        old=(
            'unless `more` is true."""\n'
            '        request.require("jobs.read", "*" if query.type is None else f"jobs/{query.type}")'
        ),
        new='unless `more` is true."""\n        assert request.caller.has_grant_for("jobs.read")',
        caught_by=WORLDS,
    ),
    Mutant(
        name="a list of definitions that is not filtered",
        breaks="B10: a grant on one type reveals nothing of others",
        file="api/jobs.py",
        old='[item for item in definitions if request.caller.may("jobs.read", f"jobs/{item.type}")]',
        new="[*definitions]",
        caught_by=WORLDS,
    ),
    Mutant(
        name="a page of secrets that ends at a name outside the grant",
        breaks="B10: a cursor has no position that the caller may not see",
        file="records/service.py",
        old="encode_cursor(visible[limit - 1].name, bound_to=bound_to)",
        new="encode_cursor(records[-1].name, bound_to=bound_to)",
        caught_by=WORLDS,
    ),
    Mutant(
        name="a batch of settles that checks only the first",
        breaks="J4: a caller settles only attempts of types that it may run",
        file="api/claims.py",
        old="        try:\n            await require_job_access(self._jobs, request, entry.id)\n            outcome",
        new="        try:\n            outcome",
        caught_by=WORLDS,
    ),
    Mutant(
        name="a worker credential that tells running jobs of other types from missing ones",
        breaks="B10: knowing an ID reveals nothing",
        file="api/claims.py",
        old="    return error if job.type in request.caller.types else _job_not_found(job_id)",
        new="    return error",
        caught_by=WORLDS,
    ),
]
