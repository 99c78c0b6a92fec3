"""Engines move jobs forward.

In: commits that began an attempt, due rows, services that ask for work. Out: directives, and inputs for
the job writer. The engines do not know each other; both drive the same machine through the same kernel.
"""
