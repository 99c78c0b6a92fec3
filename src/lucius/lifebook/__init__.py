"""Lifebook: the contract of runs over DynamoDB, SQS and Lambda, beside that of Lucius.

In: requests for runs, messages of a queue. Out: jobs in one DynamoDB table, each worked through its steps
whatever crashes on the way, and one analytics event at its end. The statuses, the item, the message and the
retries are those of the contract `lifebook-orchestrator-jobs v1`; where its letter alone would lose or repeat
something, writes are conditional on a version and a lease.

May know the values of `core`, `contracts` and `telemetry`. Knows neither Lucius's ledger nor its buses: a
workflow that uses Lucius does so through a port that Lucius's client fits. Its own composition root is
`build`, which alone reads a clock and draws ids and chance; boto3 is known to `aws` and the adapters on it.
"""
