"""The pure machine.

In: a job record, something that happened, the time and a fresh lease id.
Out: the record after it, and the events that say why; or a refusal.
Knows nothing of clocks, storage, networks or logging; imports nothing that could reach them.

`states` and `inputs` are the tables, `decide` makes the decision (with `draft` and `replies`), `fold`
rebuilds a record from its events. `due` says when a job has to be looked at again, `routing` which lane it
takes, `explain` what it waits for. `model` holds the values, `canonical` their JSON.
"""
