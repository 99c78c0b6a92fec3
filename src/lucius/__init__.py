"""Lucius: a durable job-orchestration control plane for document and AI pipelines."""

__version__ = "0.1.0"
