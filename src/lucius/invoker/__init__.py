"""The temporal engine's hand on the ledger and the bus.

In: what workflows ask for over the internal API, replies from the bus and over HTTP, controls. Out: commits,
directives, and signals that tell each job's workflow where the job stands. The only writer after creation on
this engine and the only one that signals. Knows workflows as a port; knows nothing of Temporal.
"""
