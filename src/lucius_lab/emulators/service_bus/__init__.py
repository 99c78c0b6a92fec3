"""A Service Bus for tests and for work on one machine: it speaks the SDK's protocol, it is not Azure.

In: AMQP 1.0 over loopback, as the unmodified `azure-servicebus` speaks it. Out: topics and subscriptions with
peek-lock, renewal, abandoning, dead letters, a limit of deliveries, locks that run out, batches, scheduled
messages and duplicates found by their id. Subscriptions may require sessions. Everything is in memory and
ends with the process; there are no transactions, no deferred messages, no time to live, no rights, and every
client is let in.

`codec` turns AMQP types into bytes and back, `frames` does the same for frames, `messages` for messages;
`broker` is the state machine, without a clock of its own; `links`, `management` and `connection` are the
protocol above it, and `server` listens. `python -m lucius_lab.emulators.service_bus --port 5672` runs it by
itself.
"""
