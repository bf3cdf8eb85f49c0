"""Records: small objects of a tenant that are written rarely and read whole.

A kind of record is a frozen struct and one registration (`Kind`). Routes, client methods, commands of the command line,
grants and audit entries follow from it. Only what is looked up by something other than its name, or on a hot path, has
tables of its own.
"""
