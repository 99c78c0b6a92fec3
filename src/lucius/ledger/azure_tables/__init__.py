"""The table store on Azure Table Storage: `store` is the adapter, `wire` sends each call, `commit` settles
its outcome."""
