"""The public HTTP API.

In: requests. Out: answers of the contract, and problem documents for what is refused.
Translates and nothing more: every rule lives further in. HTTP codes live in `problems` alone.
"""
