"""The only code that writes a job: it creates jobs, and it changes them.

In: commands whose shape is right, requests to run a job again, replies of services, notes of the publisher,
controls of users, due rows. Out: the job a command became, what became of each input, or a refusal. One
shape of write: load, decide, commit if the version still holds, else again. Knows registry, ledger and
machine; knows nothing of HTTP, buses or engines.

`submit` creates a job, `writer` changes one, `due` does what a due row asks for, `reruns` starts an ended
job again; `admission` keeps the limits on jobs in flight, `planning` tells what `submit` would do, `tokens`
signs callback tokens.
"""
