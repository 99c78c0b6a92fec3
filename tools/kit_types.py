"""Writes the messages' types of the worker kits, in TypeScript and Go, from docs/schemas.

Usage: python tools/kit_types.py [--check]
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SCHEMAS = ("directive", "ack", "progress", "result")
HEADER = "Written by tools/kit_types.py from docs/schemas; `make kits` writes it anew."
TYPESCRIPT = ROOT / "kits/typescript/src/messages.ts"
GO = ROOT / "kits/go/messages.go"
INITIALS = {"id": "ID", "uri": "URI", "url": "URL", "urls": "URLs"}

Schema = dict[str, Any]


def definitions() -> dict[str, Schema]:
    """Every type by its name, in the order in which the schemas name them."""
    found: dict[str, Schema] = {}
    for name in SCHEMAS:
        document = json.loads((ROOT / f"docs/schemas/{name}.json").read_text())
        for each, schema in (*document.get("$defs", {}).items(), (document["title"], document)):
            if found.setdefault(each, schema) != schema:
                raise SystemExit(f"{each} means two things in docs/schemas")
    return found


def is_nullable(schema: Schema) -> bool:
    return "null" in listed(schema) or {"type": "null"} in schema.get("anyOf", [])


def without_null(schema: Schema) -> Schema:
    others = [each for each in schema.get("anyOf", []) if each != {"type": "null"}]
    if others:
        return others[0]
    kinds = [kind for kind in listed(schema) if kind != "null"]
    return {**schema, "type": kinds[0]} if kinds else schema


def listed(schema: Schema) -> list[str]:
    kind = schema.get("type", [])
    return [kind] if isinstance(kind, str) else kind


def is_open(schema: Schema) -> bool:
    return "pass through" in schema.get("description", "")


def reference(schema: Schema) -> str:
    return schema["$ref"].rpartition("/")[2]


# -- TypeScript


def typescript() -> str:
    parts = [f"// {HEADER}\n"]
    for name, schema in definitions().items():
        comment = f"/** {schema['description']} */\n" if "description" in schema else ""
        if "enum" in schema:
            parts.append(f"{comment}export type {name} = {in_typescript(schema)};\n")
            continue
        members = "".join(
            f"{note(each, '  /** ', ' */')}  {member}{'' if member in schema['required'] else '?'}: "
            f"{in_typescript(each)};\n"
            for member, each in schema["properties"].items()
        )
        members += "  [member: string]: unknown;\n" if is_open(schema) else ""
        parts.append(f"{comment}export interface {name} {{\n{members}}}\n")
    return "\n".join(parts)


def note(schema: Schema, before: str, after: str = "") -> str:
    return f"{before}{schema['description']}{after}\n" if "description" in schema else ""


def in_typescript(schema: Schema) -> str:
    null = " | null" if is_nullable(schema) else ""
    schema = without_null(schema)
    if "$ref" in schema:
        return reference(schema) + null
    if "const" in schema:
        return json.dumps(schema["const"]) + null
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"]) + null
    match listed(schema):
        case ["array"]:
            return f"{in_typescript(schema['items'])}[]{null}"
        case ["integer"] | ["number"]:
            return f"number{null}"
        case [("string" | "boolean") as kind]:
            return f"{kind}{null}"
        case ["object"] if "additionalProperties" in schema:
            return f"Record<string, {in_typescript(schema['additionalProperties'])}>{null}"
        case []:
            return "unknown"
    raise SystemExit(f"no type in TypeScript for {schema}")


# -- Go


def go() -> str:
    parts = [f"// {HEADER}\n\npackage worker\n"]
    for name, schema in definitions().items():
        comment = f"// {name}: {schema['description']}\n" if "description" in schema else ""
        if "enum" in schema:
            values = "".join(f'\t{name}{camel(value)} {name} = "{value}"\n' for value in schema["enum"])
            parts.append(f"{comment}type {name} string\n\nconst (\n{values})\n")
        elif is_open(schema):
            parts.append(f"{comment}type {name} map[string]interface{{}}\n")
        else:
            parts.append(f"{comment}type {name} struct {{\n{go_members(schema)}}}\n")
    text = "\n".join(parts)
    gofmt = shutil.which("gofmt")
    if gofmt is None:
        raise SystemExit("gofmt was not found: it comes with Go")
    formatted = subprocess.run([gofmt], input=text, capture_output=True, text=True, check=True)  # noqa: S603
    return formatted.stdout


def go_members(schema: Schema) -> str:
    lines: list[str] = []
    for member, each in schema["properties"].items():
        is_needed = member in schema["required"]
        lines.append(note(each, "\t// ").rstrip("\n"))
        tag = member if is_needed else f"{member},omitempty"
        lines.append(f'\t{camel(member)} {in_go(each, is_needed=is_needed)} `json:"{tag}"`')
    return "".join(f"{line}\n" for line in lines if line)


def in_go(schema: Schema, *, is_needed: bool) -> str:
    pointer = "*" if is_nullable(schema) or not is_needed else ""
    schema = without_null(schema)
    if "$ref" in schema:
        name = reference(schema)
        return name if is_open(definitions()[name]) else pointer + name
    match listed(schema):
        case ["array"]:
            return f"[]{in_go(schema['items'], is_needed=True)}"
        case ["integer"]:
            return f"{pointer}int"
        case ["number"]:
            return f"{pointer}float64"
        case ["boolean"]:
            return f"{pointer}bool"
        case ["string"]:
            return f"{pointer}string"
        case ["object"] if "additionalProperties" in schema:
            return f"map[string]{in_go(schema['additionalProperties'], is_needed=True)}"
        case []:
            return "interface{}"
    raise SystemExit(f"no type in Go for {schema}")


def camel(name: str) -> str:
    words = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)
    return "".join(INITIALS.get(word.lower(), word[:1].upper() + word[1:].lower()) for word in words)


def main() -> int:
    stale = []
    for path, text in ((TYPESCRIPT, typescript()), (GO, go())):
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(path.relative_to(ROOT))
    for path in stale:
        sys.stdout.write(f"{path} is not what docs/schemas say: run `make kits`\n")
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
