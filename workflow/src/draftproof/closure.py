"""Which source files shape a stage's result? The static import closure of a module, and its digest.

Snakemake sees a rule's shell text, not the package behind it. Rules give this digest as a param, so that a
changed module reruns the stages that use it and nothing else. Comments and formatting do not count.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "draftproof"
ROOT = Path(__file__).parent
DATA_SUFFIXES = {".yaml", ".jsonl", ".json", ".j2", ".css"}


def module_file(module: str) -> Path | None:
    """Return the source file of a module of this package, or None when it is none."""
    if module.split(".")[0] != PACKAGE:
        return None
    path = ROOT.joinpath(*module.split(".")[1:])
    if (path / "__init__.py").is_file():
        return path / "__init__.py"
    return path.with_suffix(".py") if path.with_suffix(".py").is_file() else None


def imported_modules(tree: ast.Module) -> Iterator[str]:
    """Yield every dotted name a module imports, at any depth; ``from a import b`` yields a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def import_closure(*entries: str) -> dict[str, Path]:
    """Return {module: source file} of all package modules reachable from the entries, parents included."""
    closure: dict[str, Path] = {}
    todo = list(entries)
    while todo:
        module = todo.pop()
        path = module_file(module)
        if path is None or module in closure:
            continue
        closure[module] = path
        todo.append(module.rpartition(".")[0])
        todo.extend(imported_modules(ast.parse(path.read_text())))
    return closure


def code_digest(*entries: str) -> str:
    """Return a digest of the entries' import closure: syntax trees, and data files beside each package.

    Raises ValueError when an entry is no module of this package.
    """
    if missing := [entry for entry in entries if module_file(entry) is None]:
        raise ValueError(f"no such module: {', '.join(missing)}")
    sha = hashlib.sha256()
    for module, path in sorted(import_closure(*entries).items()):
        sha.update(f"{module}\0{ast.dump(ast.parse(path.read_text()))}\0".encode())
        if path.name == "__init__.py" and path.parent != ROOT:
            for data in sorted(path.parent.iterdir()):
                if data.suffix in DATA_SUFFIXES:
                    sha.update(data.name.encode() + data.read_bytes())
    return sha.hexdigest()[:16]
