"""The statements of this engine, in files named after nouns."""

from ingot.engines.statements import Statements

SQL = Statements(__name__)
