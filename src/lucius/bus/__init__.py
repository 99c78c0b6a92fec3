"""The bus: 16 lanes of directives and 16 lanes of replies.

In: directives for a service and replies of a service, as bytes with a key and an id. Out: the same, each
locked for one receiver at a time until it is settled, and again if it is not.
Knows topics, locks, deliveries and dead letters; knows nothing of jobs, ledgers, engines or what a body says.

`port` is what other rooms use; `memory` is the adapter that lives in one process, `nats` the one over NATS
JetStream (with `nats_names`, `nats_link`, `nats_receiver`); `nats_server` runs a server for development.
`service_bus` is the one over Azure Service Bus (with `service_bus_names`, `service_bus_link`,
`service_bus_sender`, `service_bus_receiver` and `service_bus_read`).
`bell` is how somebody in this process waits until another has something for them, or for so long at most.
"""
