"""Durable memory.

In: job records to create, changes decided by `core`, questions about what is due.
Out: job records, events, lists, and `Conflict` where another writer was faster.
Knows rows, keys, ETags and indexes; knows nothing of HTTP, buses or engines.

`store` is the port of table stores; `memory`, `sqlite` and `azure_tables` are its adapters. `job_ledger` is
what other packages use for jobs: it reads records and commits decisions, which `commit_plan` turns into
writes, and `commit_listeners` follow. `layout` says under which keys the rows lie, `rows` what they hold,
`checksums` and `row_check` whether they can be read; `quarantine` knows those that cannot. `indexes` finds
jobs that are due or to be dispatched, `lists` and `projections` serve the lists of the API, `index_audit`
repairs all of them. `idempotency`, `slots`, `name_index`, `api_keys`, `webhooks` and `job_deletion` each keep
rows of their own.
"""
