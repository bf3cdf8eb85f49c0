"""The SQL statements of this engine, in files named after what they are about."""

from ingot.engines.statements import Statements

SQL = Statements(__name__)
