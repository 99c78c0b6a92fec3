"""From a request type to its protocol.

In: protocol documents (built in, files in a folder, or keys of Azure App Configuration) and a job's payload.
Out: protocols as values, each step's part of a payload, and in plain words what is wrong with a document.
Knows nothing of jobs, storage or HTTP. A job copies what it needs when it is created, so nothing here is
asked about a running job.

`port` is what other packages use; `builtin`, `folder` and `app_configuration` are its adapters, over
`documents` (what a document may say) and `catalogue` (which one a request type names). `payloads` checks and
divides payloads.
"""

from lucius.registry.builtin import BuiltinRegistry
from lucius.registry.folder import FolderRegistry
from lucius.registry.payloads import PayloadRules, step_payloads
from lucius.registry.port import Registry

__all__ = ["BuiltinRegistry", "FolderRegistry", "PayloadRules", "Registry", "step_payloads"]
