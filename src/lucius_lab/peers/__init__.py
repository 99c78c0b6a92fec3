"""Lucius beside its peers, in one run on one machine: the same job of three steps, by turns.

In: sizes, and environments in which the peers are installed (`make bench-peers` makes them). Out: a table, a
chart, and what was measured as JSON. Nothing of a peer is imported here: each has a script in `lab/peers`,
which its own Python runs.
"""
