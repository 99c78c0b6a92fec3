"""What crosses a wire, to and from the values of `core`.

In: bytes and JSON documents from outside. Out: an `Envelope` or a reply that the machine understands, or a
refusal that names every field at fault; and, the other way, directives and views for services and clients.
Knows `core` alone: nothing of HTTP, the bus, storage or policy.

`envelope` is a command, `messages` are directives and replies, `views` what the API shows of a job; each
states its own JSON Schemas, in the words of `schemas`. `components` and `asyncapi` publish them, with
`examples`. `keys` are API keys, `schedules` commands by the clock, `internal` the calls between workflows and
the invoker. `documents` reads JSON from outside. `json_schema` checks payloads against schemas of protocols,
within the costs that `schema_cost` and `schema_patterns` bound. `credentials` keeps secrets out of texts.
"""
