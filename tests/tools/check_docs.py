#!/usr/bin/env python3
"""Checks that the documents tell the truth about the tree.

usage: check_docs.py SOURCE_ROOT [BUILD_ROOT]

Paths and links in every .md of the tree exist; a function named beside a source file is in it; the README's example is
examples/embed.c; AGENTS.md has at most 60 lines.
"""
import os
import pathlib
import re
import sys

KNOWN = ("src/", "tests/", "docs/", "include/", "models/", "scripts/", "examples/", "bench/", ".ci/")


def find_documents(root):
    """Every .md, but for what is built or hidden."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if not f.startswith(".") and not (folder == str(root) and f in ("build", "dist"))]
        found += [pathlib.Path(folder, name) for name in names if name.endswith(".md")]
    return sorted(found)


def check_paths(root, document, text, faults):
    for match in re.finditer(r"`([^`\s]+)`|\]\(([^)#]+)\)", text):
        name = match[1] or match[2]
        document_named = name.endswith(".md") and "/" in name
        if match[1] and not name.startswith(KNOWN) and not document_named or match[2] and "://" in name:
            continue
        base = root if match[1] else document.parent
        pattern = re.sub(r"<[a-z]+>", "*", name)
        if not list(base.glob(pattern.rstrip("/"))) and not (base / pattern).resolve().exists():
            faults.append(f"{document.relative_to(root)}: {name} does not exist")


def check_functions(root, document, text, faults):
    for function, path in re.findall(r"`(\w+)` in `((?:src|tests)/[^`]+)`", text):
        if not (root / path).is_file() or not re.search(rf"\b{function}\b", (root / path).read_text()):
            faults.append(f"{document.relative_to(root)}: {function} is not in {path}")


def check_measure(root, faults):
    """scripts/measure runs programs that are there: it takes minutes, so no test runs it."""
    text = (root / "scripts/measure").read_text(encoding="utf-8")
    names = re.findall(r'(?<!def )\bbench\("(\w+)"', text)
    faults += [f"scripts/measure: bench_{name} has no bench/{name}.c" for name in names if not (root / f"bench/{name}.c").is_file()]
    if not names:
        faults.append("scripts/measure: no benchmark found")


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    faults = []
    documents = find_documents(root)
    for document in documents:
        text = document.read_text(encoding="utf-8")
        check_paths(root, document, text, faults)
        check_functions(root, document, text, faults)
    readme = (root / "README.md").read_text(encoding="utf-8")
    if f"```c\n{(root / 'examples/embed.c').read_text(encoding='utf-8')}```" not in readme:
        faults.append("README.md: the example differs from examples/embed.c")
    lines = len((root / "AGENTS.md").read_text().splitlines())
    if lines > 60:
        faults.append(f"AGENTS.md: {lines} lines, at most 60")
    check_measure(root, faults)
    print("\n".join(faults) if faults else f"{len(documents)} documents, no fault")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
