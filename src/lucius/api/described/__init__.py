"""What every operation of the HTTP API means, for people and for generators of clients.

In: nothing at run time. Out: for each area of the API its operations, by operation id, with their parameters,
bodies, answers, refusals and examples. `lucius.api.openapi` joins them with the routes that are served. These
modules may know the routes' limits; the routes do not know them.
"""
