"""The table store in one SQLite file: `store` is the adapter, `writer` commits for many callers at once."""
