"""Submit: validate, resolve, route, look up the key, admit, claim the key, create.

In: an envelope whose shape is right, or the wish to run a job again. Out: the job it became, or a refusal.
Creates jobs and never changes one. Knows registry, ledger and machine; nothing of HTTP or engines.
"""
