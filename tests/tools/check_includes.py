#!/usr/bin/env python3
"""Checks the sources: who includes whom, and the rules of CONTRIBUTING.md that a machine can see.

usage: check_includes.py SOURCE_ROOT [BUILD_ROOT]     exit 1 lists every violation
       check_includes.py --self-test                  plants one violation per rule and expects each to be found
"""
import pathlib
import re
import sys
import tempfile

# A module may include headers of itself and of every module right of it (docs/architecture.md).
MAY_INCLUDE = {
    "cli": "server recipe engine grammar spec sampling cache model backend checkpoint tokenizer tensor base",
    "server": "recipe engine grammar checkpoint tokenizer base",
    "recipe": "engine grammar tokenizer checkpoint tensor base",
    "engine": "spec sampling cache model backend grammar tokenizer checkpoint tensor base",
    "spec": "sampling cache model backend checkpoint tensor base",
    "sampling": "model backend checkpoint tensor base",
    "cache": "model backend checkpoint tensor base",
    "model": "backend tokenizer checkpoint tensor base",
    "backend": "tensor base",
    "checkpoint": "tensor base",
    "grammar": "tokenizer base",
    "tokenizer": "base",
    "tensor": "base",
    "base": "",
}
# Folders below a module that only the module itself may include, but for the headers named.
INNER = {"backend/cpu": {"cpu.h"}, "model/deepseek_v41": set()}
MAX_LINES = 1000

# rule, pattern in the code without comments and strings, files (relative to the root) that may
BANNED = [
    ("getenv belongs in src/base/config.c", re.compile(r"\b(secure_)?getenv\s*\("), {"src/base/config.c"}),
    ("only main may end the process", re.compile(r"\b(_?exit|_Exit|quick_exit|abort|longjmp)\s*\("), {"src/cli/main.c"}),
    ("arithmetic of the contract: no libm in the path of a logit, use backend/cpu/math.h",
     re.compile(r"\b(expf?|logf?|log1pf?|log2f?|powf?|sinf?|cosf?|tanhf?|erff?|expm1f?)\s*\("), {"src/model/deepseek_v41/rotary.c"}),
]
BANNED_ONLY_IN = {2: ("src/backend/", "src/sampling/", "src/model/")}
MARKS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
# A home or project folder of somebody's machine, or a path that climbs out (in includes: see check_include).
OUTSIDE = re.compile(r"(?<![\w.%])/(home|root|work|Users)/|[\s'`(]\.\./\w")

def module_of(path):
    """src/backend/cpu/x.c -> backend"""
    parts = path.parts
    return parts[1] if len(parts) > 2 and parts[0] == "src" else None

def strip(text):
    """The code without comments and string contents; line ends stay."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
    return pattern.sub(lambda m: '""' if m[0][0] in "\"'" else "\n" * m[0].count("\n"), text)

def check_include(path, line, target, faults):
    module = module_of(path)
    where = f"{path}:{line}"
    if target.startswith((".", "/")):
        faults.append(f"{where}: include \"{target}\": name headers from src/")
        return
    parts = pathlib.PurePosixPath(target).parts
    if target == "deepinfer.h" or len(parts) == 1:
        return
    other, folder = parts[0], "/".join(parts[:-1])
    if other not in MAY_INCLUDE:
        faults.append(f"{where}: \"{target}\": unknown module {other}")
    elif other != module and other not in MAY_INCLUDE[module].split():
        faults.append(f"{where}: {module} may not include {other} (\"{target}\")")
    elif other != module and parts[-1].endswith("_internal.h"):
        faults.append(f"{where}: \"{target}\" is for {other} alone")
    elif other != module and parts[-1] not in INNER.get(folder, {parts[-1]}):
        faults.append(f"{where}: \"{target}\" is for {folder} alone")

def check_file(root, path, faults):
    text = (root / path).read_text(encoding="utf-8")
    lines = text.splitlines()
    if len(lines) > MAX_LINES:
        faults.append(f"{path}: {len(lines)} lines; split it (limit {MAX_LINES})")
    for number, line in enumerate(lines, 1):
        if MARKS.search(line):
            faults.append(f"{path}:{number}: unfinished work is not committed: {line.strip()}")
        if OUTSIDE.search(line):
            faults.append(f"{path}:{number}: names a path outside the repository: {line.strip()}")
    if module_of(path) is None:
        return
    if module_of(path) not in MAY_INCLUDE:
        faults.append(f"{path}: module {module_of(path)} has no place in the include directions")
        return
    for match in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', text, re.M):
        check_include(path, text.count("\n", 0, match.start()) + 1, match[1], faults)
    code = strip(text)
    for index, (rule, pattern, allowed) in enumerate(BANNED):
        only_in = BANNED_ONLY_IN.get(index)
        if str(path) in allowed or (only_in and not str(path).startswith(only_in)):
            continue
        for match in pattern.finditer(code):
            line = code.count("\n", 0, match.start()) + 1
            faults.append(f"{path}:{line}: {match[0].rstrip('( ')}: {rule}")

# A name that crosses modules: a type's or a function's, as headers write them at the beginning of a line.
DECLARED = re.compile(
    r"^(?:\} (di_\w+);|typedef [^;\n]*\} (di_\w+);|typedef [^{};]*?\b(di_\w+);|typedef [^{};]*?\(\*(di_\w+)\)|extern [^{};]*?\b(di_\w+)(?:\[[^;]*)?;"
    r"|(?!typedef|extern|return)[A-Za-z][\w *]*?\b(di_\w+)\()", re.M)

def check_names(root, headers, faults):
    """A name with di_ means one thing, so that any two headers can be included together."""
    places = {}
    for path in headers:
        for match in DECLARED.finditer(strip((root / path).read_text(encoding="utf-8"))):
            places.setdefault(next(filter(None, match.groups())), []).append(path)
    for name, where in sorted(places.items()):
        if len(set(where)) > 1:
            faults.append(f"{where[1]}: {name} is declared in {where[0]} too; one of them needs a narrower name")

def check(root):
    faults = []
    files = [f for folder in ("src", "include", "tests", "bench", "examples") for f in sorted((root / folder).rglob("*.[ch]"))]
    for file in files:
        check_file(root, file.relative_to(root), faults)
    check_names(root, [f.relative_to(root) for f in files if f.suffix == ".h" and f.relative_to(root).parts[0] != "tests"], faults)
    return len(files), faults

PLANTED = {
    "src/base/a.c": ('#include "tensor/tensor.h"\n', "base may not include tensor"),
    "src/tokenizer/a.c": ('#include "checkpoint/checkpoint.h"\n', "tokenizer may not include checkpoint"),
    "src/sampling/a.c": ('#include "cache/state.h"\n', "sampling may not include cache"),
    "src/model/a.c": ('#include "backend/cpu/math.h"\n', "is for backend/cpu alone"),
    "src/recipe/a.c": ('#include "engine/engine_internal.h"\n', "is for engine alone"),
    "src/cache/a.c": ('#include "../model/model.h"\n', "name headers from src/"),
    "src/engine/a.c": ('int f(void) { return getenv("A") != 0; }\n', "getenv belongs in"),
    "src/cli/a.c": ("void f(void) { exit(1); }\n", "only main may end"),
    "src/backend/cpu/a.c": ("float f(float x) { return expf(x); }\n", "no libm"),
    "src/nowhere/a.c": ("int x;\n", "no place in the include directions"),
    "src/checkpoint/a.c": ("/* TO" "DO */\n", "unfinished work"),
    "tests/unit/a.c": ("/* see ../elsewhere */\n", "outside the repository"),
    "src/tensor/a.c": ("\n" * (MAX_LINES + 1), "split it"),
    "src/spec/a.h": ("typedef struct di_thing {\n    int a;\n} di_thing;\n", "narrower name"),
    "src/spec/b.h": ("void\n*di_other(int a);\nint di_place(int a,\n             int b);\n", "narrower name"),
}

def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        clean = root / "src/engine/clean.c"
        clean.parent.mkdir(parents=True)
        (clean.parent / "clean.h").write_text("typedef enum di_thing { DI_A } di_thing;\ntypedef struct di_place di_place;\n")
        clean.write_text('#include "backend/cpu/cpu.h"\n#include "base/pool.h"\n/* exit( getenv( */ char *s = "abort(";\n')
        if check(root)[1]:
            sys.exit("self-test: found faults in a clean file: " + "; ".join(check(root)[1]))
        for name, (text, _) in PLANTED.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        faults = check(root)[1]
        missed = [name for name, (_, expected) in PLANTED.items()
                  if not any(f.startswith(name) and expected in f for f in faults)]
        if missed or len(faults) != len(PLANTED):
            sys.exit(f"self-test: missed {missed}; found " + "\n".join(faults))
    print(f"self-test: {len(PLANTED)} planted violations found")

def main():
    if len(sys.argv) == 2 and sys.argv[1] == "--self-test":
        return self_test()
    self_test()
    count, faults = check(pathlib.Path(sys.argv[1]))
    if not count:
        faults.append("no source files found")
    print("\n".join(faults) if faults else f"{count} files, no violation")
    return sys.exit(1 if faults else 0)

if __name__ == "__main__":
    main()
