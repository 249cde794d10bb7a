#!/usr/bin/env python3
"""Installs a build into a scratch folder and uses it as a stranger would.

usage: check_install.py SOURCE_ROOT BUILD_ROOT

A program is compiled through pkg-config and run, the installed binary reports its version, and nothing but the public
functions is exported.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile


def run(*command, **keywords):
    result = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **keywords)
    if result.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit {result.returncode}\n{result.stdout}")
    return result.stdout


def one(folder, pattern):
    found = sorted(folder.rglob(pattern))
    if not found:
        sys.exit(f"{pattern} was not installed")
    return found[0]


def check_exports(library, header):
    declared = set(re.findall(r"\b(di_\w+)\s*\(", re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)))
    exported = {line.split()[-1] for line in run("nm", "-D", "--defined-only", library).splitlines()}
    if exported - declared:
        sys.exit(f"exported but not in deepinfer.h: {sorted(exported - declared)}")
    missing = {name for name in declared - exported if name != "di_score_row"}
    if missing:
        sys.exit(f"declared in deepinfer.h but not exported: {sorted(missing)}")


def main():
    source, build = map(pathlib.Path, sys.argv[1:3])
    with tempfile.TemporaryDirectory() as scratch:
        prefix = pathlib.Path(scratch) / "prefix"
        run("cmake", "--install", build, "--prefix", prefix)
        library, config = one(prefix, "libdeepinfer.so"), one(prefix, "deepinfer.pc")
        one(prefix, "libdeepinfer.a")
        model = one(prefix, "config.json").parent
        if not (model / "LICENSE").is_file() or not (model / "ATTRIBUTION.md").is_file():
            sys.exit("the weights were installed without their licence and attribution")
        check_exports(library, one(prefix, "deepinfer.h"))

        environment = dict(os.environ, PKG_CONFIG_PATH=str(config.parent), LD_LIBRARY_PATH=str(library.parent))
        flags = run("pkg-config", "--define-prefix", "--cflags", "--libs", "deepinfer", env=environment).split()
        program = prefix / "embed"
        run("cc", "-std=c11", source / "examples/embed.c", "-o", program, *flags)
        answer = run(program, model, env=environment)
        version = run(prefix / "bin/deepinfer", "--version")
        if not answer.strip() or not version.strip():
            sys.exit(f"installed programs say nothing: {answer!r} {version!r}")
    print("installed library, header, pkg-config file, model and program work")


if __name__ == "__main__":
    main()
