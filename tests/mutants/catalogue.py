"""The planted bugs."""

from __future__ import annotations

from tests.mutants import (
    of_cli,
    of_documents,
    of_http,
    of_jobs,
    of_objects,
    of_people,
    of_postgres,
    of_postgres_access,
    of_sqlite,
    of_worker,
)

MUTANTS = [
    *of_sqlite.MUTANTS,
    *of_postgres.MUTANTS,
    *of_postgres_access.MUTANTS,
    *of_people.MUTANTS,
    *of_http.MUTANTS,
    *of_jobs.MUTANTS,
    *of_cli.MUTANTS,
    *of_worker.MUTANTS,
    *of_documents.MUTANTS,
    *of_objects.MUTANTS,
]
