"""Protocols and limits of services from a folder, laid over another registry.

In: `*.yaml`, `*.yml` and `*.json` files that people edit while Lucius is running, each a protocol or a
document of services (its one member is `services`). Out: a registry that
follows them. A bad edit is reported and changes nothing: the file's last good version goes on serving. A
removed file takes its protocol with it. The folder wins over the registry below it.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from lucius.core.flow import ServiceLimits
from lucius.core.model import Json, ProtocolSpec, StepPolicy
from lucius.registry.catalogue import Catalogue
from lucius.registry.documents import DOCUMENT_BYTES_MAX, load_document, parse_protocol
from lucius.registry.port import Registry
from lucius.registry.service_limits import SERVICES, parse_services

FILES_MAX: Final = 1000
_SUFFIXES: Final = (".yaml", ".yml", ".json")

# File name to (mtime in ns, size, inode): a file moved into place is seen though the first two are the same.
Stamps = dict[str, tuple[int, int, int]]


class _File(msgspec.Struct, frozen=True, kw_only=True):
    protocol: ProtocolSpec | None = None  # the last good version
    services: Mapping[str, ServiceLimits] | None = None  # the same, where the document is one of services
    problems: tuple[str, ...] = ()  # of the version that is there now


class FolderRegistry:
    def __init__(self, path: str | os.PathLike[str], base: Registry, defaults: StepPolicy) -> None:
        self._path = Path(path)
        self._base = base
        self._defaults = defaults
        self._stamps: Stamps | None = None
        self._files: dict[str, _File] = {}
        self._folder_problems: tuple[str, ...] = ()
        self._base_seen: tuple[ProtocolSpec, ...] = ()
        self._services: Mapping[str, ServiceLimits] = {}
        self._services_below: Mapping[str, ServiceLimits] = {}
        self._service_problems: tuple[str, ...] = ()
        self._catalogue = Catalogue((), base.all())
        self.refresh()

    def refresh(self) -> bool:
        """Looks again; whether anything has changed. Costs one `stat` a file where nothing has."""
        stamps, folder_problems = self._look()
        reported_already, self._folder_problems = folder_problems == self._folder_problems, folder_problems
        base_now, below_now = self._base.all(), self._base.services()
        same_below = base_now is self._base_seen and below_now == self._services_below
        if stamps == self._stamps and same_below:
            return not reported_already
        before = self._stamps or {}
        files: dict[str, _File] = {}
        for name, stamp in stamps.items():
            known = self._files.get(name)
            unchanged = known is not None and before.get(name) == stamp
            files[name] = known if known is not None and unchanged else self._read(name, known)
        self._files, self._stamps, self._base_seen = files, stamps, base_now
        served = [(name, file.protocol) for name, file in files.items() if file.protocol is not None]
        self._catalogue = Catalogue(served, base_now, before=self._catalogue)
        self._serve_services(below_now)
        return True

    def _serve_services(self, below: Mapping[str, ServiceLimits]) -> None:
        """A service that two documents name has the limits of the first."""
        named: dict[str, str] = {}
        limits: dict[str, ServiceLimits] = {}
        problems: list[str] = []
        for name, file in self._files.items():
            for service, each in (file.services or {}).items():
                if service in named:
                    problems.append(f"{name}: /services/{service}: is limited by {named[service]} already")
                else:
                    named[service], limits[service] = name, each
        self._services_below, self._service_problems = below, tuple(problems)
        self._services = {**below, **limits}

    def _look(self) -> tuple[Stamps, tuple[str, ...]]:
        stamps: Stamps = {}
        try:
            with os.scandir(self._path) as entries:
                for entry in entries:
                    if entry.name.endswith(_SUFFIXES) and not entry.name.startswith("."):
                        self._stamp(entry, stamps)
        except OSError as error:
            # Out of reach is not empty: what was served goes on being served.
            return self._stamps or {}, (f"the protocol folder cannot be read: {error.strerror}",)
        return self._in_order(stamps)

    @staticmethod
    def _stamp(entry: os.DirEntry[str], stamps: Stamps) -> None:
        try:
            if entry.is_file():
                stat = entry.stat()
                stamps[entry.name] = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        except FileNotFoundError:
            return  # it went away while the folder was read

    def _in_order(self, stamps: Stamps) -> tuple[Stamps, tuple[str, ...]]:
        names = sorted(stamps)
        problems: tuple[str, ...] = ()
        if len(names) > FILES_MAX:
            problems = (f"the protocol folder holds more than {FILES_MAX} documents; the rest is not read",)
        return {name: stamps[name] for name in names[:FILES_MAX]}, problems

    def _read(self, name: str, known: _File | None) -> _File:
        kept = known.protocol if known is not None else None
        kept_services = known.services if known is not None else None
        try:
            with (self._path / name).open("rb") as file:
                raw = file.read(DOCUMENT_BYTES_MAX + 1)
        except OSError as error:
            problems: tuple[str, ...] = (f"{name}: cannot be read: {error.strerror}",)
            return _File(protocol=kept, services=kept_services, problems=problems)
        doc, problem = load_document(raw, is_json=name.endswith(".json"))
        if problem is None and isinstance(doc, dict) and SERVICES in doc:
            return self._read_services(name, doc, kept_services)
        parsed = parse_protocol(doc, defaults=self._defaults) if problem is None else (problem,)
        if not isinstance(parsed, tuple):
            return _File(protocol=parsed)
        problems = tuple(f"{name}: {text}" for text in parsed)
        if kept is not None:
            problems = (*problems, f"{name}: the last good version ({kept.protocol_id}) is still served")
        if kept_services is not None:
            problems = (*problems, f"{name}: the limits of its last good version hold")
        return _File(protocol=kept, services=kept_services, problems=problems)

    @staticmethod
    def _read_services(name: str, doc: Json, kept: Mapping[str, ServiceLimits] | None) -> _File:
        parsed = parse_services(doc)
        if not isinstance(parsed, tuple):
            return _File(services=parsed)
        problems = tuple(f"{name}: {text}" for text in parsed)
        if kept is not None:
            problems = (*problems, f"{name}: the limits of its last good version hold")
        return _File(services=kept, problems=problems)

    def services(self) -> Mapping[str, ServiceLimits]:
        return self._services

    def resolve(self, request_type: str) -> ProtocolSpec | None:
        return self._catalogue.resolve(request_type)

    def find(self, protocol_id: str) -> ProtocolSpec | None:
        return self._catalogue.find(protocol_id) or self._base.find(protocol_id)

    def all(self) -> tuple[ProtocolSpec, ...]:
        return self._catalogue.all()

    def request_types(self) -> tuple[str, ...]:
        return self._catalogue.request_types()

    def problems(self) -> tuple[str, ...]:
        of_files = (text for file in self._files.values() for text in file.problems)
        own = (*self._folder_problems, *of_files, *self._service_problems)
        return (*self._base.problems(), *own, *self._catalogue.problems())
