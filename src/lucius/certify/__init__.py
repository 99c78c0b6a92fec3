"""The certificate of a platform service: Lucius plays the orchestrator against it, and says which rules hold.

In: a running service, or the command that starts one; the way its work travels (HTTP or a bus); samples of
work. Out: a certificate, one verdict a rule, each with what was seen. The service is a black box: it is
judged by what it says on the wire and by what it leaves in the workspace.

Knows the contracts, the bus and what a service may be asked; nothing of the ledger or of engines.

`run` tries the rules one by one; `rules` lists them, and `rules_*` hold their tests. `testbed` is what a rule
uses: it sends directives through `http_side` or `bus_side`, writes what comes back into the `transcript`, and
may own the `process` of the service. `samples` are the inputs, `values` the certificate, `page` its web page.
"""
