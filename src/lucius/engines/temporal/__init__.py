"""The temporal engine: a workflow for each job asks for the moves, and the ledger grants them.

In: a job's position when its workflow starts, signals that say where it stands since. Out: calls to the
invoker, which alone writes. `moves` chooses what comes next, `workflow` waits and asks, `activities` carry
the question over HTTP, `client` starts and signals, `worker` runs it all, `server` is a Temporal for trying.
"""
