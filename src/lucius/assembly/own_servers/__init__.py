"""Servers that `lucius dev` starts where no address is set; their data lies in the data folder."""
