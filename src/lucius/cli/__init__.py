"""The command line, `lucius …`.

In: arguments, `LUCIUS_URL`, `LUCIUS_API_KEY`, profiles in a config file, files the user names. Out: data on
stdout, messages on stderr, an exit code: 0 done, 1 failed, 2 usage, 3 the job ended badly, 4 cannot reach or
not allowed. Client commands know the public HTTP API only, through the Python client, never the ledger or an
engine. `dev` and the commands of parts start the rest of Lucius, and are imported only when asked for, so
that the other commands start fast.
"""
