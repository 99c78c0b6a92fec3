"""Mutation testing of `lucius.core`: is every line of the machine held by a test?

Makes a copy of the machine and its tests below the work folder. There mutmut changes the functions, and
`mutation_data` the tables, one thing at a time; the tests of core are run on each change. Prints how many
changes were noticed, module by module, and ends with 1 when fewer than SCORE_MIN_PERCENT were. An interrupted
run is taken up again, unless code or tests changed meanwhile.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import mutation_data

TOP = Path(__file__).resolve().parents[1]
WORK = TOP / ".soak" / "mutation"
CORE = Path("src/lucius/core")
COPIED = ("src/lucius", "tests/core", "tests/vectors", "docs/reference/lifecycle.md", "pyproject.toml")
# What the score depends on: a change to any of it makes earlier verdicts worthless.
COUNTED = ("src/lucius/core", "tests/core", "tests/vectors", "tools", "pyproject.toml")
SCORE_MIN_PERCENT = 90.0
WORKERS = 2

KILLED = {1, 3}
SURVIVED = {0}
UNTESTED = {5, 33}
TIMED_OUT = {24, -24, 36, 152, 255}


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/mutation.py", description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=WORKERS, help="mutants at a time")
    parser.add_argument("--work", type=Path, default=WORK, help="the folder to work in")
    parser.add_argument("--json", action="store_true", help="the score as JSON")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="only these, such as `fold`")
    asked = parser.parse_args()
    _prepare(asked.work)
    names = [f"lucius.core.{module}.*" for module in asked.modules]
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(asked.workers), *names]
    ended = subprocess.run(  # noqa: S603 - ours
        command, cwd=asked.work, env={**os.environ, **mutation_data.FEW_PLUGINS}, stdout=sys.stderr
    )
    if ended.returncode != 0:
        return ended.returncode
    verdicts = _verdicts(asked.work, asked.modules)
    if not asked.modules:
        for module, counts in mutation_data.run(asked.work, asked.workers).items():
            verdicts[module] = verdicts.get(module, Counter()) + counts
    _print(verdicts, as_json=asked.json)
    return 0 if _percent(sum(verdicts.values(), Counter())) >= SCORE_MIN_PERCENT else 1


def _prepare(work: Path) -> None:
    """A copy in which mutmut may do as it likes, and which is not edited while it runs."""
    work.mkdir(parents=True, exist_ok=True)
    digest, kept = _digest(), work / "digest"
    if kept.exists() and kept.read_text() == digest:
        return
    for path in work.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name in COPIED:
        source, target = TOP / name, work / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)
    shutil.copy2(TOP / "tools" / "mutation_conftest.py", work / "tests" / "conftest.py")
    kept.write_text(digest)


def _digest() -> str:
    seen = hashlib.sha256()
    for name in COUNTED:
        path = TOP / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                seen.update(file.relative_to(TOP).as_posix().encode() + file.read_bytes())
    return seen.hexdigest()


def _verdicts(work: Path, modules: list[str]) -> dict[str, Counter[str]]:
    found = {}
    for meta in sorted((work / "mutants" / CORE).glob("*.py.meta")):
        module = meta.name.removesuffix(".py.meta")
        codes = json.loads(meta.read_text())["exit_code_by_key"]
        if codes and (not modules or module in modules):
            found[module] = Counter(_verdict(code) for code in codes.values())
            _tell_survivors(codes)
    return found


def _verdict(code: int | None) -> str:
    for verdict, codes in (
        ("killed", KILLED),
        ("survived", SURVIVED),
        ("untested", UNTESTED),
        ("timed out", TIMED_OUT),
    ):
        if code in codes:
            return verdict
    return "unclear"


def _tell_survivors(codes: dict[str, int | None]) -> None:
    for name, code in codes.items():
        if _verdict(code) not in ("killed", "timed out"):
            sys.stderr.write(f"{_verdict(code)}: {name}\n")


def _percent(counts: Counter[str]) -> float:
    total = counts.total()
    return 100.0 * (counts["killed"] + counts["timed out"]) / total if total else 0.0


def _print(verdicts: dict[str, Counter[str]], *, as_json: bool) -> None:
    lines = {**verdicts, "all": sum(verdicts.values(), Counter())}
    if as_json:
        shown = {name: {**counts, "percent": round(_percent(counts), 1)} for name, counts in lines.items()}
        sys.stdout.write(json.dumps(shown) + "\n")
        return
    columns = ("killed", "timed out", "survived", "untested", "unclear")
    sys.stdout.write(
        f"{'module':<12}{'mutants':>9}" + "".join(f"{name:>11}" for name in columns) + "    score\n"
    )
    for name, counts in lines.items():
        numbers = "".join(f"{counts[column]:>11}" for column in columns)
        sys.stdout.write(f"{name:<12}{counts.total():>9}{numbers}  {_percent(counts):5.1f} %\n")
    sys.stdout.write(f"at least {SCORE_MIN_PERCENT:g} % of the changes must be noticed\n")


if __name__ == "__main__":
    sys.exit(main())
