"""Faults: what a store holds when its process, its disk, its power, its clock or its workers fail.

How it is put together: `verbs` calls every verb of the jobs room and keeps a `history` outside the store; `workload`
does so at random with many tasks. `life` runs it in processes that are killed, at random or at named `points`;
`outage` runs it on a disk whose power goes (`powercut`); both on the real store, whose `files` are only watched.
Afterwards `invariants` holds the file against `rules` in SQL, against a `replay` of its own events, and against the
history. `python -m tests.soak` does the same for hours.

Blobs: `object_life` kills what writes into a blob folder, `fake_disk` is one whose power goes; `blob_life` kills whole
servers while `blob_clients` work with them, at random or at the points of `blob_child`, and holds what is on their
`blob_premises`, either engine with either store, against `blob_rules`.
"""
