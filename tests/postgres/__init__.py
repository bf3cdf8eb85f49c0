"""A real PostgreSQL for the tests: a cluster for each test process, and databases that tests borrow from it."""

from tests.postgres.databases import (
    ACT_SQL,
    ChanceClock,
    Database,
    borrowed_database,
    clocked,
    close_pools,
    create_database,
    database_for,
    empty_database,
    open_postgres,
    release_databases,
)
from tests.postgres.locks import until_blocked
from tests.postgres.programs import binaries, install_debian
from tests.postgres.server import PLAIN_TEMPLATE, TEMPLATE, Server, own_server, server_url, shared_folder, with_database

__all__ = [
    "ACT_SQL",
    "PLAIN_TEMPLATE",
    "TEMPLATE",
    "ChanceClock",
    "Database",
    "Server",
    "binaries",
    "borrowed_database",
    "clocked",
    "close_pools",
    "create_database",
    "database_for",
    "empty_database",
    "install_debian",
    "open_postgres",
    "own_server",
    "release_databases",
    "server_url",
    "shared_folder",
    "until_blocked",
    "with_database",
]
