"""Durable memory.

In: job records to create, changes decided by `core`, questions about what is due.
Out: job records, events, lists, and `Conflict` where somebody else was faster.
Knows rows, keys, ETags and indexes; knows nothing of HTTP, buses or engines.

`store` is the port; `memory`, `sqlite` and `azure_tables` are its adapters; `layout` says under which keys a
job's rows lie; `jobs` is what other rooms use.
"""
