"""The workspace over obstore: local folders, and S3, Azure and Google storage by URL scheme.

In: URIs and bytes. Out: bytes, or a fault of `port`.
A `file` URI is followed through every symbolic link before it is judged, and must end below one of the
allowed roots. `az://CONTAINER/KEY` lies in the account of the process's settings; `https://` is served
where it leads to Azure Storage or to that account, and nowhere else. Cloud stores that nothing was said about
take their credentials from the environment, as their own tools do. What a caller may name is decided by the
reference policy at ingress; this module only makes sure that no local file leaks.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
)
from obstore.store import LocalStore, ObjectStore, from_url

from lucius.workspace import port
from lucius.workspace.blob import CLOUD_SUFFIXES, CONTAINER, BlobAccount, TokenSource, blob_place
from lucius.workspace.own_files import is_own

BYTES_MAX = 64 * 1024 * 1024
STORES_MAX = 64
COPIED_BYTES_MAX = 1024 * 1024
CHUNK_NAMES = 1_000
AZURE_SCHEMES = frozenset({"az", "abfs", "abfss"})
CLOUD_SCHEMES = frozenset({"s3", "gs"}) | AZURE_SCHEMES
NOT_ONE = "a URI that does not name one object"


class ObjectWorkspace:
    """Reads and writes objects of at most `bytes_max` below `roots` and in cloud stores."""

    def __init__(
        self,
        roots: Sequence[Path] = (),
        *,
        bytes_max: int = BYTES_MAX,
        cloud_schemes: frozenset[str] = CLOUD_SCHEMES,
        timeout_seconds: float = 60.0,
        retries_max: int = 3,
        blob: BlobAccount | None = None,
        tokens: TokenSource | None = None,
        data: Path | None = None,
    ) -> None:
        """`blob`: the account of `az` URIs. `tokens`: open it, and any other account, for who we are. `data`:
        the folder in which Lucius has files of its own."""
        # A root may itself be reached through a link; what counts is where it really is.
        self._local = {root.resolve(): LocalStore(root.resolve(), mkdir=True) for root in roots}
        self._cloud: OrderedDict[str, ObjectStore] = OrderedDict()
        self._bytes_max = bytes_max
        self._schemes = cloud_schemes & CLOUD_SCHEMES
        self._timeout_seconds = timeout_seconds
        self._retries_max = retries_max
        self._blob = blob
        self._tokens = tokens
        self._data = None if data is None else data.resolve()

    artifact_uri = staticmethod(port.artifact_uri)

    async def read(self, uri: str) -> bytes:
        store, path = self._locate(uri)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                found = await obstore.get_async(store, path)
                if found.meta["size"] > self._bytes_max:
                    raise port.ArtifactTooLarge(
                        f"{found.meta['size']} bytes; at most {self._bytes_max} are read"
                    )
                if found.meta["size"] <= COPIED_BYTES_MAX:
                    return bytes(await found.bytes_async())
                # Piece by piece: to copy all at once would hold up everything else in this process.
                pieces = BytesIO()
                async for piece in found.stream(min_chunk_size=COPIED_BYTES_MAX):
                    pieces.write(piece)
                return pieces.getvalue()
        except (BaseError, OSError, ValueError) as fault:
            raise _translated(fault) from None

    async def write_new(self, uri: str, data: bytes) -> None:
        try:
            await self._put(uri, data, "create")
        except port.ArtifactExists:
            # A repeated write of the same thing is the same write: its first answer may have been lost.
            if await self.read(uri) != data:
                raise

    async def write(self, uri: str, data: bytes) -> None:
        await self._put(uri, data, "overwrite")

    async def remove(self, uris: Sequence[str]) -> None:
        """What is not there is removed already."""
        await asyncio.gather(*(self._remove(uri) for uri in uris))

    async def below(self, uri: str, names_max: int) -> list[str]:
        """Names of objects below a folder, at most so many, in no order that could be relied on."""
        store, path = self._locate(uri)
        names: list[str] = []
        try:
            async with asyncio.timeout(self._timeout_seconds):
                async for chunk in obstore.list(store, path, chunk_size=min(names_max, CHUNK_NAMES)):
                    names += [found["path"].removeprefix(f"{path}/") for found in chunk]
                    if len(names) >= names_max:
                        break
        except (BaseError, OSError, ValueError) as fault:
            raise _translated(fault) from None
        return names[:names_max]

    def is_below(self, uri: str, folder_uri: str) -> bool:
        """Whether an object lies in a folder, whatever links lead there."""
        store, path = self._locate(uri)
        folder_store, folder = self._locate(folder_uri.rstrip("/"))
        return store is folder_store and path.startswith(f"{folder}/")

    async def folders(self, uri: str) -> list[str]:
        """Names of the folders in a folder."""
        store, path = self._locate(uri)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                found = await obstore.list_with_delimiter_async(store, path)
        except (BaseError, OSError, ValueError) as fault:
            raise _translated(fault) from None
        return [folder.rstrip("/").rpartition("/")[2] for folder in found["common_prefixes"]]

    async def _remove(self, uri: str) -> None:
        store, path = self._locate(uri)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await obstore.delete_async(store, path)
        except (NotFoundError, FileNotFoundError):
            return
        except (BaseError, OSError, ValueError) as fault:
            raise _translated(fault) from None

    async def _put(self, uri: str, data: bytes, mode: Literal["create", "overwrite"]) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError("only bytes are written: the library below takes a name for a file to copy")
        if len(data) > self._bytes_max:
            raise port.ArtifactTooLarge(f"{len(data)} bytes; at most {self._bytes_max} are written")
        store, path = self._locate(uri)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                # In one request, because a multipart upload cannot promise to create only.
                await obstore.put_async(store, path, data, mode=mode, use_multipart=False)
        except (NotFoundError, FileNotFoundError):
            raise port.WorkspaceUnavailable(
                "the container, bucket or folder to write to is not there"
            ) from None
        except (BaseError, OSError, ValueError) as fault:
            raise _translated(fault) from None

    def _locate(self, uri: str) -> tuple[ObjectStore, str]:
        scheme, separator, rest = uri.partition("://")
        scheme = scheme.lower()
        if not separator:
            raise port.ArtifactNotAllowed("not an absolute URI")
        if scheme == "file":
            return self._locate_local(uri)
        if scheme in ("https", "http"):
            return self._locate_blob(uri)
        if scheme not in self._schemes:
            raise port.ArtifactNotAllowed(f"no store serves this URI's scheme; {self._served()}")
        authority, _, key = rest.partition("/")
        if not authority:
            raise port.ArtifactNotAllowed(NOT_ONE)
        container, _, host = authority.partition("@")
        account = host.partition(".")[0] or None
        ours = self._blob is not None and scheme in AZURE_SCHEMES and account in (None, self._blob.name)
        base = f"az://{container}" if ours else f"{scheme}://{authority}"
        key = _one_key(key)
        return self._cloud_store(base, ours=ours, azure=scheme in AZURE_SCHEMES), key

    def _locate_blob(self, uri: str) -> tuple[ObjectStore, str]:
        place = blob_place(uri, self._blob) if "az" in self._schemes else None
        if place is None:
            raise port.ArtifactNotAllowed(f"no store serves this web address; {self._served()}")
        if "?" in uri or "#" in uri:
            raise port.ArtifactNotAllowed("a URI with a query, which may hold a signature")
        key = _one_key(place.key)
        if not CONTAINER.fullmatch(place.container):
            raise port.ArtifactNotAllowed(NOT_ONE)
        ours = self._blob is not None and place.account == self._blob.name
        base = f"https://{place.account}{CLOUD_SUFFIXES[0]}/{place.container}"
        base = f"az://{place.container}" if ours else base
        return self._cloud_store(base, ours=ours, azure=True), key

    def _served(self) -> str:
        """The refusal of another kind of address. Another attempt may find a process that serves that kind,
        too."""
        served = [*sorted(self._schemes), *(["file"] if self._local else [])]
        if "az" in self._schemes:
            served.append(f"https where it leads to Azure Storage (https://ACCOUNT{CLOUD_SUFFIXES[0]}/…)")
        return f"served are {', '.join(served) or 'none'}"

    def _locate_local(self, uri: str) -> tuple[ObjectStore, str]:
        parts = urlsplit(uri)
        if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
            raise port.ArtifactNotAllowed("a file URI has a path and nothing else")
        try:
            real = Path(unquote(parts.path, errors="strict")).resolve()
        except (ValueError, OSError, RuntimeError):
            raise port.ArtifactNotAllowed("a file URI whose path cannot be followed") from None
        data = self._data
        if data is not None and real.is_relative_to(data) and is_own(real.relative_to(data).parts):
            raise port.ArtifactNotAllowed("one of Lucius's own files")
        for root, store in self._local.items():
            if real != root and real.is_relative_to(root):
                return store, real.relative_to(root).as_posix()
        raise port.ArtifactNotAllowed("a file outside the allowed folders")

    def _cloud_store(self, base: str, *, ours: bool, azure: bool) -> ObjectStore:
        """`ours`: in the account of the process's settings."""
        store = self._cloud.get(base)
        if store is None:
            # No client options but for our own account: they would displace the environment's (AWS_ALLOW_HTTP
            # and its like).
            options: dict[str, Any] = {}
            if ours and self._blob is not None:
                options = self._blob.options(self._tokens)
            elif azure and self._tokens is not None:
                options = {"credential_provider": self._tokens}
            try:
                store = from_url(base, retry_config={"max_retries": self._retries_max}, **options)
            except (BaseError, OSError, ValueError) as fault:
                raise _translated(fault) from None
            self._cloud[base] = store
            while len(self._cloud) > STORES_MAX:
                self._cloud.popitem(last=False)
        self._cloud.move_to_end(base)
        return store


def _one_key(key: str) -> str:
    if any(part in ("", ".", "..") for part in key.split("/")):
        raise port.ArtifactNotAllowed(NOT_ONE)
    return key


def _translated(fault: Exception) -> Exception:
    """The port's fault for a store's. The store's text is left behind: it may hold paths and signed URLs."""
    match fault:
        case port.ArtifactTooLarge():
            return fault
        case NotFoundError() | FileNotFoundError():
            return port.ArtifactNotFound("nothing lies at this URI")
        case AlreadyExistsError() | FileExistsError():
            return port.ArtifactExists("something else lies at this URI")
        case ValueError():
            return port.ArtifactNotAllowed("a URI that the store cannot take as a path")
        case _:
            return port.WorkspaceUnavailable(f"the store cannot be used ({type(fault).__name__})")
