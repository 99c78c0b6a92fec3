"""The pure machine.

In: a job record, something that happened, the time and a fresh lease id.
Out: the record after it, and the events that say why.
Knows nothing of clocks, storage, networks or logging; imports nothing that could reach them.
"""
