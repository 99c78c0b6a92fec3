"""What Lucius needs in Azure beforehand: tables, topics and subscriptions.

In: what an installation is like. Out: what is missing or differs, and, if asked, its remedy. `plan` is pure:
it says what is wanted and compares. `tables` and `service_bus` look at the real thing and change it, and
nothing here ever deletes. Knows nothing of jobs.
"""
