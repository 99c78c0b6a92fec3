"""The outbox engine: the intention to send is committed with the fact that asks for it, and a loop sends it.

`handout` gives directives to services in reach, `relay` to a broker, whose replies `reply_consumer` takes;
`sweeper` does what time asks for; `hurry` spares operators the wait; `retention` forgets.
"""
