"""The planted bugs."""

from __future__ import annotations

from tests.mutants import (
    of_cli,
    of_documents,
    of_grants,
    of_http,
    of_jobs,
    of_narrow_callers,
    of_objects,
    of_people,
    of_postgres,
    of_postgres_access,
    of_records,
    of_sqlite,
    of_worker,
)

KINDS = (
    of_sqlite,
    of_postgres,
    of_postgres_access,
    of_people,
    of_records,
    of_grants,
    of_http,
    of_jobs,
    of_cli,
    of_worker,
    of_documents,
    of_objects,
    of_narrow_callers,
)
MUTANTS = [mutant for kind in KINDS for mutant in kind.MUTANTS]
