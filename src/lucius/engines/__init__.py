"""Engines move jobs forward.

In: commits that began an attempt, due rows, services that ask for work. Out: directives, and calls on
`progress`. The engines do not know each other; each drives the same machine through the same room.
"""
