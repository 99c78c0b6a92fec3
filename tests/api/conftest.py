"""Servers to call, for every test of the API."""

from tests.support.api_setup import callers, deployment, quick_deployment

__all__ = ["callers", "deployment", "quick_deployment"]
