#!/usr/bin/env python3
"""deepinfer verify: its lines, its exit codes, a planted fault. The matrix itself is tested by test_matrix."""
import signal
import subprocess
import time

import common
from common import Case, NANO, environment, run


class Verify(Case):
    def test_lines_of_a_run_that_passes(self):
        lines = self.ok("verify", NANO, "--json", "--tokens", 100, "--rows", "T15,T13,T9").lines()
        self.assertEqual(lines[-1], {"passed": True})
        cases = [line for line in lines[:-1] if "tokens" in line]
        self.assertEqual([line["row"] for line in lines[:-1] if "case" not in line], ["T13"])
        self.assertEqual({line["row"] for line in cases}, {"T9", "T15"})
        for line in cases:
            self.assertEqual(set(line), {"row", "case", "tokens", "differing_bytes"})
            self.assertEqual(line["differing_bytes"], 0)
            self.assertGreater(line["tokens"], 0)
        for line in lines[:-1]:
            if "skipped" in line:
                self.assertTrue(line["skipped"])

    def test_a_planted_fault_is_found(self):
        result = run("verify", NANO, "--json", "--tokens", 100, "--rows", "T14", "--plant-fault")
        self.assertEqual(result.code, 1)
        self.assertEqual(result.err, "")
        lines = result.lines()
        self.assertEqual(lines[-1], {"passed": False})
        different = [line for line in lines[:-1] if line["differing_bytes"]]
        self.assertEqual([line["row"] for line in different], ["T14"])
        self.assertIn("position", different[0]["first_difference"])
        table = run("verify", NANO, "--tokens", 100, "--rows", "T14", "--plant-fault")
        self.assertEqual(table.code, 1)
        self.assertIn("T14  cancels and deadlines around", table.text)
        self.assertIn("DIFFERS", table.text)
        self.assertIn("FAILED", table.text)

    def test_a_table_for_people(self):
        text = self.ok("verify", NANO, "--tokens", 100, "--rows", "T15", "--threads", 1, "--prefill", "compact").text
        self.assertIn("equal", text)
        self.assertRegex(text, r"\npassed: \d+ tokens compared in \d+ s, 0 cases differ, 0 skipped\n$")

    def test_nothing_compared_is_not_passed(self):
        result = run("verify", NANO, "--json", "--rows", "T13")
        self.assertEqual(result.code, 1)
        self.assertEqual([sorted(line) for line in result.lines()], [["row", "skipped"], ["passed"]])

    def test_wrong_usage(self):
        self.usage("verify", NANO, "--rows", "T99", says="T1 to T15")
        self.usage("verify", NANO, "--tokens", "many", says="integer")
        self.usage("verify", NANO, "--temperature", "1", says="verify does not take --temperature")
        self.failed("verify", "/nowhere", says="/nowhere")

    def test_an_interruption_ends_it(self):
        process = subprocess.Popen([common.BINARY, "verify", NANO, "--tokens", "100000000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.assertRegex(said.decode(), r"verify: interrupted; \d+ tokens compared so far, 0 cases differ\n$")


if __name__ == "__main__":
    common.main()
