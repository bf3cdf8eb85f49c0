"""Faults: tests of stores whose process, disk, power, clock or workers fail.

`recorded_calls` calls every operation of the jobs room and records a `history` outside the store. `workload` does so at
random with many tasks. `store_kill_run` runs it in processes that are killed, at random or at the named `kill_points`.
`power_cut_run` runs it on a disk that loses power (`powercut`). Both use the real store through `watched_files`.
Afterwards `invariants` compares the file with `sqlite_rules`, with a `replay` of its own events, and with the history.
`python -m tests.soak` does the same for hours.

Blobs: `object_kill_run` kills processes that write into a blob folder, and `fake_disk` loses power. `blob_kill_run`
kills whole servers while `blob_clients` use them, at random or at the points of `blob_server_process`, and compares
their `blob_environment` with `blob_rules`.
"""
