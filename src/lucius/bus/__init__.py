"""The bus: 16 lanes of directives and 16 lanes of replies.

In: directives for a service and replies of a service, as bytes with a key and an id. Out: the same, each
locked for one receiver at a time until it is settled, and again if it is not.
Knows topics, locks, deliveries and dead letters; knows nothing of jobs, ledgers, engines or what a body says.

`port` is what other packages use. `memory` is the adapter inside one process, `nats` the one over NATS
JetStream, `service_bus` the one over Azure Service Bus. `wake` lets one task of a process wait for another.
"""
