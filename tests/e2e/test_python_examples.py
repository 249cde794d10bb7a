#!/usr/bin/env python3
"""The examples in Python run and keep their promises."""

# labels: long
import subprocess
import sys
import unittest

import common
import python_case

python_case.prepare()


@unittest.skipIf(python_case.sanitized(), "the other tests do the same with a smaller model")
class Examples(common.Case):
    def example(self, name, *arguments):
        done = subprocess.run(
            [sys.executable, str(common.ROOT / "examples" / name), *arguments],
            env=python_case.environment(PYTHONIOENCODING="utf-8"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            timeout=300,
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.splitlines()

    def test_offline(self):
        lines = self.example("offline.py", common.TINY)
        self.assertEqual(len([line for line in lines if " -> " in line]), 4)
        streamed, answered = lines[-1], [line for line in lines if line.startswith("answer: ")]
        self.assertIn(repr(streamed), answered[0])

    def test_reproducible(self):
        lines = self.example("reproducible.py", common.TINY)
        self.assertEqual(lines[-1], "four answers, the same bytes")
        self.assertEqual(len({line.split("logits ")[1] for line in lines[:-1]}), 1)


if __name__ == "__main__":
    common.main()
