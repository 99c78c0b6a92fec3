"""The workbench: what looks at the machine from outside and reports.

In: the tables of `core`, and a running Lucius as its users see it.
Out: documents drawn from the code, and measurements.
Knows any room below it; no room below knows it, and nothing here is needed to run a job.
"""
