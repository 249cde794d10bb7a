#!/usr/bin/env python3
"""The Python package as a package: header, installing without a network, what is said about a wrong library."""

# labels: long
import ctypes
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

import common
import python_case

python_case.prepare()
import deepinfer  # noqa: E402
from deepinfer import _library  # noqa: E402

HEADER = common.ROOT / "include/deepinfer.h"
OPEN = "import deepinfer; llm = deepinfer.LLM(); print(llm.info.path, deepinfer.library_version(), deepinfer.__file__)"


def library(folder, name, source):
    """A shared library of a few lines."""
    path = pathlib.Path(folder, name)
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)], input=source.encode(), check=True)
    return str(path)


class Header(common.Case):
    def test_structures(self):
        lines, wanted = [], []
        for name, structure in _library.STRUCTURES.items():
            lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
            wanted.append(f"{name} {ctypes.sizeof(structure)}")
            for field, _ in structure._fields_:
                lines.append(
                    f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));'
                )
                place = getattr(structure, field)
                wanted.append(f"{name}.{field} {place.offset} {place.size}")
        source = '#include <stdio.h>\n#include "deepinfer.h"\nint main(void) {' + "".join(lines) + "}"
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "layout")
            subprocess.run(
                ["gcc", "-I", str(HEADER.parent), "-x", "c", "-", "-o", program], input=source.encode(), check=True
            )
            found = subprocess.run(
                [program], env=common.environment(LD_PRELOAD=""), stdout=subprocess.PIPE, text=True, check=True
            ).stdout
        self.assertEqual(found.splitlines(), wanted)

    def test_names(self):
        text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(encoding="utf-8"), flags=re.S)
        for name in _library._FUNCTIONS:
            self.assertRegex(text, rf"DI_API [^;]*\b{name}\(")
        sampling = text[text.index("typedef struct di_sampling {") : text.index("} di_sampling;")]
        fields = set(re.findall(r"(\w+);", sampling)) - {
            "has_seed",
            "stop_count",
            "stop_token_count",
            "logit_bias_count",
            "golden_token_count",
        }
        ours = {"seed", "structured_outputs", "include_stop_str_in_output", "draft_records"}  # no members of di_sampling
        self.assertEqual(set(deepinfer.SamplingParams.__dataclass_fields__), fields | ours)
        # What an output counts and times has the names of the header; reasoning is told apart in Python.
        for structure, known in (("di_usage", deepinfer.Usage), ("di_timings", deepinfer.RequestMetrics)):
            body = text[text.index(f"typedef struct {structure} {{") : text.index(f"}} {structure};")]
            names = re.findall(r"(\w+)[,;]", body)
            self.assertEqual(set(known.__dataclass_fields__) - {"reasoning_tokens"}, set(names))
            self.assertEqual([name for name, _ in _library.STRUCTURES[structure]._fields_], names)
        documented = (common.ROOT / "docs/python.md").read_text(encoding="utf-8")
        for known in (deepinfer.Usage, deepinfer.RequestMetrics):
            for name in known.__dataclass_fields__:
                self.assertIn(f"`{name}`", documented)
        version = [re.search(rf"DI_VERSION_{part}\s+(\d+)", text)[1] for part in ("MAJOR", "MINOR", "PATCH")]
        self.assertEqual(deepinfer.__version__, ".".join(version))
        self.assertEqual(deepinfer.library_version(), deepinfer.__version__)

    def test_options(self):
        from deepinfer._engine import known_options

        known = known_options()
        self.assertEqual(
            [known[n] for n in ("max_model_len", "max_num_seqs", "max_num_batched_tokens")],
            ["context", "max-seqs", "max-rows"],
        )
        text = common.run("help", "configuration-markdown").text
        for group, title in re.findall(r"\n## (common|limits)\n(.*?)(?=\n## |\Z)", text, re.S):
            for name in re.findall(r"\n\| `--([a-z-]+)`", title):
                self.assertTrue(name in known.values() or name in ("model", "quiet", "log-level"), name)
        self.assertNotIn("temperature", known)


class Library(common.Case):
    def says(self, path, *words):
        done = python_case.python(OPEN, LIBDEEPINFER=path)
        self.assertEqual(done.returncode, 1)
        last = done.stderr.strip().splitlines()[-1]
        self.assertIn("EngineError", last)
        for word in words:
            self.assertIn(word, last)

    def test_missing(self):
        self.says("/nowhere/lib.so", "LIBDEEPINFER", "/nowhere/lib.so", "does not exist")
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(common.ROOT / "python/deepinfer", pathlib.Path(folder, "a/deepinfer"))
            done = subprocess.run(
                [sys.executable, "-c", OPEN],
                env=common.environment(PYTHONPATH=folder + "/a", LIBDEEPINFER=""),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        self.assertIn("libdeepinfer.so.0 was not found", done.stderr)
        self.assertIn("pip install ./python", done.stderr)

    def test_wrong(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "text.so").write_text("no library")
            self.says(folder + "/text.so", "cannot be loaded")
            self.says(library(folder, "other.so", "int main(void) { return 0; }"), "is not a deepinfer library")
            version = 'const char *di_version(void) { return "%s"; }'
            self.says(library(folder, "old.so", version % "0.0.9"), "0.0.9", deepinfer.__version__, "must be equal")
            current = version % deepinfer.__version__
            self.says(library(folder, "few.so", current), "has no function")
            names = [name for name in _library._FUNCTIONS if name != "di_version"]
            stubs = "".join(f"void {name}(void) {{}}\n" for name in names if name != "di_request_params_default")
            size = ctypes.sizeof(_library.RequestParams) + 8
            shape = f"void di_request_params_default(char *p) {{ for (int i = 0; i < {size}; i++) p[i] = 0; }}"
            self.says(library(folder, "shape.so", current + stubs + shape), "other structures")

    def test_data_needs_no_library(self):
        done = python_case.python(
            "import deepinfer; print(deepinfer.SamplingParams(n=2))", LIBDEEPINFER="/nowhere/lib.so"
        )
        self.assertEqual(done.stdout, "SamplingParams(n=2)\n", done.stderr)


@unittest.skipIf(python_case.sanitized(), "a fresh environment has no sanitizer runtime")
class Wheel(common.Case):
    def build(self, folder):
        """A source tree of links around the build under test."""
        root = pathlib.Path(folder, "tree")
        (root / "build/release").mkdir(parents=True)
        shutil.copytree(common.ROOT / "python", root / "python", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("models", "LICENSE"):
            (root / name).symlink_to(common.ROOT / name)
        (root / "build/release/libdeepinfer.so.0").symlink_to(python_case.library())
        return root

    def test_install_without_a_network(self):
        with tempfile.TemporaryDirectory() as folder:
            root = self.build(folder)
            environment = common.environment(
                PIP_NO_INDEX="1", PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_CONFIG_FILE="/dev/null"
            )
            for name in ("PYTHONPATH", "LIBDEEPINFER"):
                environment.pop(name, None)
            place = pathlib.Path(folder, "environment")
            subprocess.run([sys.executable, "-m", "venv", str(place)], check=True, env=environment)
            subprocess.run([str(place / "bin/pip"), "install", "-q", str(root / "python")], check=True, env=environment)
            shutil.rmtree(root)
            done = subprocess.run(
                [str(place / "bin/python"), "-c", OPEN], env=environment, cwd=folder, stdout=subprocess.PIPE, text=True
            )
            self.assertEqual(done.returncode, 0)
            for path in done.stdout.split()[::2]:
                self.assertTrue(path.startswith(str(place)), path)
            site = next(place.glob("lib/python*/site-packages/deepinfer"))
            self.assertTrue(
                (site / "py.typed").exists()
                and (site / "models/tiny/LICENSE").exists()
                and (site / "models/tiny/ATTRIBUTION.md").exists()
            )

    def test_wheel_is_reproducible(self):
        with tempfile.TemporaryDirectory() as folder:
            root = self.build(folder)
            code = (
                "import sys; sys.path.insert(0, sys.argv[1]); import backend; print(backend.build_wheel(sys.argv[2]))"
            )
            wheels = []
            for name in ("a", "b"):
                pathlib.Path(folder, name).mkdir()
                done = subprocess.run(
                    [sys.executable, "-c", code, str(root / "python"), os.path.join(folder, name)],
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                wheels.append(pathlib.Path(folder, name, done.stdout.strip()))
            self.assertEqual(wheels[0].read_bytes(), wheels[1].read_bytes())
            names = zipfile.ZipFile(wheels[0]).namelist()
            self.assertEqual(len(names), len(set(names)))
            record = zipfile.ZipFile(wheels[0]).read([n for n in names if n.endswith("RECORD")][0]).decode().split()
            self.assertEqual([line.split(",")[0] for line in record], names)
            (root / "build/release/libdeepinfer.so.0").unlink()
            done = subprocess.run(
                [sys.executable, "-c", code, str(root / "python"), folder], stderr=subprocess.PIPE, text=True
            )
            self.assertEqual(done.returncode, 1)
            self.assertIn("run `make`", done.stderr)


if __name__ == "__main__":
    common.main()
