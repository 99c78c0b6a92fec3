"""The outbox engine: the intention to send is committed with the fact that asks for it, and a loop sends it.

`dispatcher` gives directives to workers that poll over HTTP, straight from the ledger. `publisher` sends them
to a bus, and `bus_leases` gives them from there to workers that poll. Replies from a bus are taken by
`lucius.engines.reply_consumer`. `sweeper` does what is due; `retry_now` does at once what an operator would
otherwise wait for; `retention` deletes jobs whose time is over.
"""
