"""Chaos: real processes under load, killed at random; `run` starts them, `checks` says what must hold
afterwards."""
