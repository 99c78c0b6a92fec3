"""What crosses a wire, to and from the values of `core`.

In: bytes and JSON documents from outside. Out: an `Envelope` or a reply that the machine understands, or a
refusal that names every field at fault; and, the other way, directives and views for services and clients.
Knows `core` alone: nothing of HTTP, the bus, storage or policy.

`envelope` is a command, `messages` are directives and replies, `views` what the API shows, `keys` API keys
and `internal` the calls between workflows and the invoker. `schemas` states their JSON Schemas once;
`documents` and `asyncapi` publish them, with `examples`. `json_schema` checks payloads against schemas of
protocols, within the costs that `schema_cost` and `schema_patterns` bound. `credentials` keeps secrets out of
texts.
"""
