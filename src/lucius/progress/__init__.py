"""What changes a job after its creation.

In: replies of services, notes of the relay, controls of users, due rows. Out: what became of each.
One shape of write: load, decide, commit if the version still holds, else again. Nobody else changes a job.
Knows the ledger and the machine; knows nothing of HTTP, buses or engines.
"""
