"""Prints what an image holds, as CycloneDX 1.6: the Python distributions and the Debian packages.

Usage: python sbom.py TIME   (TIME, as in 2026-01-31T12:00:00Z, is when the image was made)
It runs inside the image, so it uses the standard library alone. The serial number follows from the content:
the same image has the same document.
"""

import hashlib
import json
import re
import sys
import uuid
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

DPKG_STATUS = Path("/var/lib/dpkg/status")
OS_RELEASE = Path("/etc/os-release")


def document(made_at: str, components: list[dict[str, Any]]) -> dict[str, Any]:
    components = sorted(components, key=lambda component: component["bom-ref"])
    lucius = next(component for component in components if component["name"] == "lucius")
    content = hashlib.sha256(json.dumps([made_at, components], sort_keys=True).encode()).hexdigest()
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {
            "timestamp": made_at,
            "component": {
                "type": "container",
                "bom-ref": "image",
                "name": "lucius",
                "version": lucius["version"],
            },
        },
        "components": components,
    }


def python_components() -> Iterator[dict[str, Any]]:
    for distribution in distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
        component = described(f"pkg:pypi/{name}@{distribution.version}", name, distribution.version)
        licence = distribution.metadata.get("License-Expression")
        yield component | ({"licenses": [{"expression": licence}]} if licence else {})


def debian_components(status: str, codename: str) -> Iterator[dict[str, Any]]:
    for paragraph in status.split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z-]+): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            name, version = fields["Package"], fields["Version"]
            place = f"?arch={fields['Architecture']}&distro={codename}"
            escaped = version.replace("+", "%2B").replace(":", "%3A")
            yield described(f"pkg:deb/debian/{name}@{escaped}{place}", name, version)


def described(url: str, name: str, version: str) -> dict[str, Any]:
    return {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}


def main() -> None:
    components = {each["bom-ref"]: each for each in python_components()}
    if DPKG_STATUS.exists():
        release = dict(
            re.findall(r'^(\w+)="?([^"\n]*)"?$', OS_RELEASE.read_text(encoding="utf-8"), re.MULTILINE)
        )
        packages = debian_components(
            DPKG_STATUS.read_text(encoding="utf-8"), release.get("VERSION_CODENAME", "")
        )
        components |= {each["bom-ref"]: each for each in packages}
    json.dump(document(sys.argv[1], list(components.values())), sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
