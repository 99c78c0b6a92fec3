"""The table store in a PostgreSQL database, which processes on many machines share.

`store` is the adapter, `writer` commits for many callers at once, `schema` is what must exist in the
database, `connection` how it is reached and what its faults mean, `keys` how text is kept in it, `notes`
what its processes tell each other.
"""
