"""Shared by the tests of the Python package: finds the library beside the program under test and imports the package.

A library with AddressSanitizer needs its runtime to be there from the start: the test starts itself again.
"""

import os
import pathlib
import subprocess
import sys

import common

PYTHON = str(common.ROOT / "python")


def library():
    return str(pathlib.Path(common.BINARY).resolve().parent / "libdeepinfer.so.0")


def _binary():
    given = sys.argv[1] if len(sys.argv) > 1 and os.path.isfile(sys.argv[1]) else os.environ.get("DEEPINFER_BINARY", "")
    return os.path.abspath(given) if given else ""


def sanitized():
    return b"libasan.so" in pathlib.Path(library()).read_bytes()


def environment(**more):
    ours = {"LIBDEEPINFER": library(), "PYTHONPATH": PYTHON, "PYTHONWARNINGS": "error::ResourceWarning"}
    return common.environment(**{**ours, **more})


def python(code, *arguments, timeout=120, **more):
    """Runs code in an interpreter of its own; the finished process."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=timeout,
        text=True,
    )


def prepare():
    """Before the package is imported."""
    common.BINARY = _binary()
    if not common.BINARY:
        sys.exit("usage: %s PROGRAM [test options]" % sys.argv[0])
    if sanitized() and "libasan" not in os.environ.get("LD_PRELOAD", ""):
        runtime = subprocess.run(
            ["gcc", "-print-file-name=libasan.so"], stdout=subprocess.PIPE, text=True, check=True
        ).stdout.strip()
        # Python itself never frees much of what it holds at its end.
        options = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
        os.execve(
            sys.executable, [sys.executable, *sys.argv], dict(os.environ, LD_PRELOAD=runtime, ASAN_OPTIONS=options)
        )
    for name in [name for name in os.environ if name.startswith("DEEPINFER_")]:
        del os.environ[name]
    os.environ["LIBDEEPINFER"] = library()
    sys.path.insert(0, PYTHON)
