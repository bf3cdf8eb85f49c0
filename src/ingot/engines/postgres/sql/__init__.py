"""The statements of this engine, one file each."""

from ingot.engines.statements import Statements

SQL = Statements(__name__)
