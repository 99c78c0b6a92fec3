"""Webhooks: one signed POST to the URL that a command named, once its job has ended.

`delivery` finds the rows that are due, `address` says where a webhook may be sent, `sender` posts it,
`secrets` keeps the keys that sign it. Both engines use it.
"""
