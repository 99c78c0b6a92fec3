"""Deterministic simulation: the real code on a virtual clock, where one seed decides everything.

In: a seed, and a `SimShape` (how many jobs, which topology, how much goes wrong). Out: a `SimOutcome`:
invariants that were broken, a hash of everything that happened, the faults, how each job ended, and a
timeline if asked. `run.simulate` is the way in.

Simulated are `jobs`, the outbox engine (dispatcher, publisher, reply consumer, sweeper, retention, lane
shares) and the sdk's runner and transports, all unchanged, over the in-process store and bus (or, with
`store_postgres` and `store_azure`, over the adapter of a deployment and a real server), in three topologies:
everything in one process; one orchestrator and workers that lease over HTTP; API processes, reconcilers and
services on a broker. Both layouts, and stores that can span partitions and that cannot.

Not simulated: HTTP itself (`api_calls` does what the routes do behind it), webhooks, metrics, streams,
signatures of tokens, the temporal engine. Clock jumps and standstills on a store that cannot span stay within
the grace period of announcements (see `cluster`).

`loop` is the event loop, `faults` what goes wrong, `store` and `bus` the wrappers, `deployment` the parts of
each process, `cluster` the processes, `workload` and `workers` what is asked of them, `watch` the port of the
`invariants`.
"""
