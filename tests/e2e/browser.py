"""A headless browser for tests of the web page: Playwright from PyPI in an environment of its own, Chromium from Debian."""
import os
import shutil
import subprocess
import sys
import unittest

import common

PACKAGES = ["playwright==1.65.2", "greenlet==3.5.6"]


def chromium():
    """Path of the browser; installed by scripts/setup when it is missing and may be."""
    found = shutil.which("chromium")
    if not found:
        done = subprocess.run([common.ROOT / "scripts/setup", "browser"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900)
        found = shutil.which("chromium")
        if not found:
            raise unittest.SkipTest(f"no chromium: {done.stderr.strip()[-300:] or 'scripts/setup browser did not bring it'}")
    return found


def enter():
    """Runs the test program again inside the environment; returns when it is inside. Without one, every test is skipped."""
    if os.environ.get("DEEPINFER_TEST_BROWSER"):
        return
    try:
        path, python = chromium(), common.venv(PACKAGES)
    except unittest.SkipTest as reason:
        print(f"skipped: {reason}", file=sys.stderr)
        sys.exit(0)
    os.execve(python, [python, *sys.argv], {**os.environ, "DEEPINFER_TEST_BROWSER": path})
