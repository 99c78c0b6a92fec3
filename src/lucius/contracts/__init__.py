"""What crosses a wire, to and from the values of core.

In: bytes and JSON documents from outside. Out: an `Envelope` or a reply the machine understands, or a refusal
that names every field at fault; and, the other way, the directives and views that leave the house.
Knows core alone: nothing of HTTP, the bus, storage or policy.
"""
