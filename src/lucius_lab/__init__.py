"""The workbench: what looks at the machine from outside and reports.

In: the tables of `core`, and a running Lucius as its users see it.
Out: documents drawn from the code, and measurements.
May import every package of `lucius`; none of them imports it, and nothing here is needed to run a job.

`sim` is the simulation, `chaos` kills real processes, `fuzz` sends broken inputs, `equivalence` compares the
engines, `bench` measures, `emulators` stand in for Azure. `planted_bugs` checks that the simulation finds
bugs.
"""
