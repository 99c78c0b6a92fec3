"""Which references a command may carry.

In: a URI from an envelope. Out: None, or in plain words why it is not allowed. Nothing is opened or resolved
here, so what is judged is the text alone: as it stands, and as it would read once decoded by the service that
opens it. Reasons never repeat a query, a user name or a path, since a refused URI may hold a secret.
"""

import posixpath
import re
import unicodedata
from itertools import pairwise
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec

from lucius.contracts.credentials import DECODE_ROUNDS_MAX, tail_holds_credentials
from lucius.jobs.new_job import SYSTEM, workspace_name
from lucius.workspace.own_files import WORKSPACES, is_own

URI_LENGTH_MAX: Final = 2048

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,31})://")
_AUTHORITY_END: Final = re.compile(r"[/?#]")
_CONTAINER: Final = re.compile(r"\$?[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,253}")
_HOST: Final = re.compile(
    r"(?P<host>[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::(?P<port>[0-9]{1,5}))?"
)
_SEGMENT_END: Final = re.compile(r"[/\\?#]")


def is_scheme(text: str) -> bool:
    """Whether a reference can have this scheme."""
    return _SCHEME.fullmatch(f"{text}://") is not None


def is_host(text: str) -> bool:
    """Whether a reference can name this host. Ports are no part of it: all of a host's are alike."""
    found = _HOST.fullmatch(text)
    return found is not None and found["port"] is None


class ReferencePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """`containers` limits the buckets and containers of every scheme but https; `hosts` the hosts of https
    and the accounts of abfs. None is no limit. `file` is allowed below `file_roots` and nowhere else."""

    schemes: frozenset[str] = frozenset({"s3", "gs", "az", "abfs", "https"})
    hosts: frozenset[str] | None = None
    containers: frozenset[str] | None = None
    file_roots: tuple[str, ...] = ()
    data: str | None = None

    def check(self, uri: str, tenant_norm: str = "") -> str | None:
        """None if the reference is allowed, else the reason. In the data folder a tenant is led neither to
        what is Lucius's own nor into the workspace of another."""
        problem = _text_problem(uri)
        if problem is not None:
            return problem
        found = _SCHEME.match(uri)
        if found is None:
            return "the reference must begin with a scheme and `://`"
        scheme = found[1].lower()
        if scheme not in self.schemes and not (scheme == "file" and self.file_roots):
            return f"the scheme {scheme} is not allowed"
        rest = uri[found.end() :]
        end = _AUTHORITY_END.search(rest)
        authority, tail = (rest, "") if end is None else (rest[: end.start()], rest[end.start() :])
        if scheme == "file":
            return self._file_problem(authority, tail, tenant_norm) or self._data_problem(tail, tenant_norm)
        return self._authority_problem(scheme, authority) or _tail_problem(tail)

    def _authority_problem(self, scheme: str, authority: str) -> str | None:
        if scheme in ("abfs", "abfss"):
            container, at, account = authority.rpartition("@")
            if not at:  # without an account, which is then the service's own
                return self._container_problem(authority)
            return self._container_problem(container) or self._host_problem(account)
        if "@" in authority:
            return "the reference must not carry a user name or password"
        if scheme in ("https", "http"):
            return self._host_problem(authority)
        return self._container_problem(authority)

    def _container_problem(self, container: str) -> str | None:
        if not container:
            return "the reference must name a bucket or container"
        if ":" in container:
            return "the reference must not carry a user name, password or port"
        if not _CONTAINER.fullmatch(container):
            return "the bucket or container is not a valid name"
        if self.containers is not None and container not in self.containers:
            return "the bucket or container is not allowed"
        return None

    def _host_problem(self, authority: str) -> str | None:
        if not authority:
            return "the reference must name a host"
        found = _HOST.fullmatch(authority)
        if found is None or (found["port"] is not None and not 0 < int(found["port"]) < 65536):
            return "the host is not a valid name"
        if self.hosts is not None and found["host"].lower().rstrip(".") not in self.hosts:
            return "the host is not allowed"
        return None

    def _file_problem(self, authority: str, path: str, tenant_norm: str) -> str | None:
        if not self.file_roots:
            return "the scheme file is not allowed"
        if authority not in ("", "localhost"):
            return "a file reference must not name a host"
        if "?" in path or "#" in path:
            return "a file reference must not have a query or fragment"
        problem = _tail_problem(path)
        if problem is not None:
            return problem
        if _has_encoded_slash(path, tenant_norm):
            return "a file reference must not hold encoded slashes"
        plain = _plain_path(unquote_to_bytes(path).decode())
        if any(_is_below(plain, _plain_path(root)) for root in self.file_roots):
            return None
        return "the file is not below an allowed folder"

    def _data_problem(self, path: str, tenant_norm: str) -> str | None:
        if self.data is None:
            return None
        plain, data = _plain_path(unquote_to_bytes(path).decode()), _plain_path(self.data)
        if not _is_below(plain, data):
            return None
        parts = plain[len(data) :].strip("/").split("/")
        if is_own(parts):
            return "the file is one of Lucius's own"
        ours = [WORKSPACES, SYSTEM, *tenant_norm.split("/")]
        theirs = parts[len(ours)] if len(parts) > len(ours) else ""
        if parts[0] == WORKSPACES and not (parts[: len(ours)] == ours and theirs.startswith("job_")):
            return "the file is in a workspace that is not the tenant's"
        return None


def _text_problem(uri: str) -> str | None:
    if not isinstance(uri, str) or not uri:
        return "the reference must not be empty"
    if len(uri) > URI_LENGTH_MAX:
        return f"the reference is longer than {URI_LENGTH_MAX} characters"
    return _character_problem(uri)


def _character_problem(text: str) -> str | None:
    if "\\" in text:
        return "the reference must not hold backslashes"
    # Printable leaves out controls, format marks (zero width, text direction) and every blank but the space.
    if not text.isprintable() or " " in text:
        return "the reference must not hold white space or control characters"
    return None


def _tail_problem(tail: str) -> str | None:
    """What is wrong with path, query and fragment, at every depth of percent-encoding."""
    for _ in range(DECODE_ROUNDS_MAX):
        problem = _credential_problem(tail) or _traversal_problem(tail)
        if problem is not None:
            return problem
        if "%" not in tail:
            return None
        try:
            decoded = unquote_to_bytes(tail).decode()
        except UnicodeDecodeError:
            return "the reference is not valid UTF-8 once decoded"
        if decoded == tail:
            return None
        tail = decoded
        # A blank in a name is spelt %20: decoded blanks are as good as the name, other controls are not.
        problem = _character_problem(tail.replace(" ", ""))
        if problem is not None:
            return problem
    return "the reference is percent-encoded too many times over"


def _traversal_problem(tail: str) -> str | None:
    # Queries are judged as well: to a store without queries `?` is a letter of the path.
    # Some stores fold compatibility forms: a full-width stop may come to be a stop.
    spellings = (tail,) if tail.isascii() else (tail, unicodedata.normalize("NFKC", tail))
    for spelling in spellings:
        for segment in _SEGMENT_END.split(spelling):
            # What follows `;` is a parameter to some servers, which then see the bare dots.
            if segment.partition(";")[0].strip() in ("..", "."):
                return "the reference must not hold `.` or `..` segments"
    return None


def _credential_problem(tail: str) -> str | None:
    if tail_holds_credentials(tail):
        return "the reference must not carry credentials or a signature"
    return None


def _has_encoded_slash(path: str, tenant_norm: str) -> bool:
    """An encoded slash is part of a name to some openers and a border to others. The tenant's own workspace
    is named with one, spelt as in directives: to both kinds that leads where the tenant's jobs wrote."""
    ours = (SYSTEM, workspace_name(tenant_norm))
    named = ["", *filter(None, path.split("/"))]
    return any("%2f" in pair[1].lower() and pair != ours for pair in pairwise(named))


def _plain_path(path: str) -> str:
    # POSIX lets two leading slashes mean something else and `normpath` keeps them; here they mean one.
    return posixpath.normpath("/" + path.lstrip("/"))


def _is_below(path: str, root: str) -> bool:
    return path.startswith("/" if root == "/" else root + "/") and path != root
