"""Records: small named objects with a version that are rarely written and always read whole.

A kind of record is a frozen struct and a `RecordKind`. Routes, client methods, subcommands, grants and audit entries
are derived from the `RecordKind`. Objects have a table of their own instead if they are found by something other than
their name, or are used on a hot path.
"""
