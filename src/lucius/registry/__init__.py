"""From a request type to its protocol.

In: protocol documents (built in, or files in a folder) and a job's payload. Out: protocols as values, each
step's part of a payload, and in plain words what is wrong with a document. Knows nothing of jobs, storage or
HTTP. A job copies what it needs when it is created, so nothing here is asked about a running job.
"""

from lucius.registry.builtin import BuiltinRegistry
from lucius.registry.folder import FolderRegistry
from lucius.registry.payloads import PayloadRules, step_payloads
from lucius.registry.port import Registry

__all__ = ["BuiltinRegistry", "FolderRegistry", "PayloadRules", "Registry", "step_payloads"]
