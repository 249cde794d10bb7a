"""Shared by the end-to-end tests: runs the program named on the command line (or by DEEPINFER_BINARY)."""
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NANO = str(ROOT / "tests/data/nano")
TINY = str(ROOT / "models/tiny")
BINARY = os.environ.get("DEEPINFER_BINARY", "")


def environment(**more):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("DEEPINFER_")}
    clean.update(more)
    return clean


class Result:
    def __init__(self, done):
        self.code = done.returncode
        self.out = done.stdout
        self.err = done.stderr.decode("utf-8", "replace")
        self.text = self.out.decode("utf-8")

    def lines(self):
        assert self.out.endswith(b"\n") or not self.out, "the last line is not ended"
        return [json.loads(line) for line in self.out.split(b"\n") if line]


def run(*arguments, stdin=b"", env=None, timeout=300):
    if isinstance(stdin, str):
        stdin = stdin.encode()
    done = subprocess.run([BINARY, *map(str, arguments)], input=stdin, capture_output=True, env=env or environment(), timeout=timeout)
    return Result(done)


def jsonl(*objects):
    return "".join(json.dumps(o, ensure_ascii=False) + "\n" for o in objects)


def venv(requirements, dependencies=True):
    """The interpreter of a virtual environment that holds exactly these requirements ("name==version", as lines of a
    requirements file, so hashes may follow); made once and shared by all builds and tests. Without a package index the
    test that asks is skipped, and the next run tries again."""
    wanted = "\n".join(sorted(requirements)) + "\n"
    place = ROOT / "build/venvs" / hashlib.sha256(f"{sys.version} {sys.base_prefix} {dependencies}\n{wanted}".encode()).hexdigest()[:16]
    listed = place.with_suffix(".txt")
    ready = place / "ready"
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{place}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # gone with the process that holds it
        if not ready.exists():
            shutil.rmtree(place, ignore_errors=True)
            clean = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "PYTHONPATH", "PYTHONHOME")}
            listed.write_text(wanted)
            pip = [str(place / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet",
                   "--only-binary", ":all:", "--timeout", "30", "-r", str(listed)]
            if not dependencies:
                pip.append("--no-deps")
            for command in ([sys.executable, "-m", "venv", str(place)], pip):
                done = subprocess.run(command, env=clean, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True, timeout=600)
                if done.returncode:
                    last = (done.stdout.strip().splitlines() or ["no message"])[-1]
                    names = ", ".join(line.split()[0] for line in requirements)
                    raise unittest.SkipTest(f"{names} cannot be installed: {last}")
            ready.touch()
    return str(place / "bin/python")


class Case(unittest.TestCase):
    maxDiff = None

    def ok(self, *arguments, **more):
        result = run(*arguments, **more)
        self.assertEqual(result.code, 0, result.err)
        return result

    def usage(self, *arguments, says, **more):
        """Wrong usage: exit 2, nothing on stdout, one message that says what is right."""
        result = run(*arguments, **more)
        self.assertEqual((result.code, result.out), (2, b""), result.err)
        self.assertIn(says, result.err)
        return result

    def failed(self, *arguments, says, **more):
        result = run(*arguments, **more)
        self.assertEqual(result.code, 1, result.err)
        self.assertIn(says, result.err)
        return result


def main():
    global BINARY
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-") and os.path.isfile(sys.argv[1]):
        BINARY = os.path.abspath(sys.argv.pop(1))
    if not BINARY:
        sys.exit("usage: %s PROGRAM [test options]" % sys.argv[0])
    sys.modules["common"].BINARY = BINARY
    unittest.main(module="__main__")
