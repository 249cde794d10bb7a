# labels: serial timing
"""deepinfer inspect reads only headers: under one second on a checkpoint of 510 GB (sparse files, best of three runs).

    test_inspect_speed.py DEEPINFER
"""
import os
import subprocess
import sys
import tempfile
import time

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(TESTS, "tools"))
import sparse_checkpoint  # noqa: E402

LIMIT = 1.0


def main(program):
    with tempfile.TemporaryDirectory(prefix="deepinfer-test-") as folder:
        sparse_checkpoint.write(os.path.join(TESTS, "data", "release", "config.json"), folder, False)
        best = 1e9
        for _ in range(3):
            start = time.monotonic()
            subprocess.run([program, "inspect", folder], stdout=subprocess.DEVNULL, check=True)
            best = min(best, time.monotonic() - start)
    print(f"inspect of 510 GB: {best:.3f} s")
    return best < LIMIT


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1]) else 1)
