"""Lucius for agents: tools over the Model Context Protocol.

In: calls of tools by an agent. Out: calls of the public HTTP API with the caller's own key, bounded answers.
An effect comes only after a dry run of the very same call. It knows the client of the API and the pages of
the documentation; nothing of the ledger, the engines or the API's inside.
"""

from lucius.mcp.certifying import CertifyRuns
from lucius.mcp.server import ToolSettings, make_server

__all__ = ["CertifyRuns", "ToolSettings", "make_server"]
