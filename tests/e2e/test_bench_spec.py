#!/usr/bin/env python3
# labels: serial timing
"""deepinfer bench spec: its lines, that they agree with each other, and a calibration that the engine takes.

    test_bench_spec.py DEEPINFER
"""

import json
import os
import tempfile
import unittest

import common
from common import NANO, environment, run

PROMPTS = [
    {"kind": "ask", "prompt": "I would like to book a table for two people."},
    {"kind": "ask", "prompt": "What is the weather like in San Jose today?"},
    {"token_ids": [0, 40, 41, 42, 43, 44]},
]


def jsonl(*lines):
    return "".join(json.dumps(line) + "\n" for line in lines)


class BenchSpec(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.input = os.path.join(self.folder.name, "prompts.jsonl")
        with open(self.input, "w", encoding="utf-8") as file:
            file.write(jsonl(*PROMPTS))

    def tearDown(self):
        self.folder.cleanup()

    def bench(self, *arguments, code=0):
        result = run("bench", "spec", *arguments)
        self.assertEqual(result.code, code, result.err)
        return result

    def test_lines(self):
        lines = self.bench("--input", self.input, "--clients", "1", "--max-tokens", "6", "--temperature", "0", "--threads", "1").lines()
        self.assertEqual(lines[0]["what"], "environment")
        self.assertEqual((lines[0]["prompts"], lines[0]["block"], lines[0]["max_tokens"]), (3, 5, 6))
        costs = [line for line in lines if line["what"] == "cost"]
        self.assertEqual([line["rows"] for line in costs if "rows" in line], list(range(1, 9)))
        self.assertEqual([line["block"] for line in costs if "block" in line], list(range(1, 6)))
        self.assertEqual(costs[0]["plain_steps"], 1)
        cycles = {str(line["cycle"]): line["plain_steps"] for line in costs if "cycle" in line}
        self.assertEqual(list(cycles), list("12345"))
        acceptance = {line["kind"]: line for line in lines if line["what"] == "acceptance"}
        self.assertEqual(set(acceptance), {"ask", "text", "all"})
        for line in acceptance.values():
            self.assertEqual(len(line["rates"]), 5)
            self.assertTrue(all(0 <= rate <= 1 for rate in line["rates"]))
            self.assertLessEqual(line["accepted_draft_tokens"], line["draft_tokens"])
            self.assertAlmostEqual(line["tau"], line["tokens"] / line["cycles"], 2)
            self.assertAlmostEqual(line["tau_converted"], 1 + line["drafts_a_cycle"] * line["rate"], 2)
        for key in ("answers", "tokens", "cycles", "draft_tokens"):
            self.assertEqual(acceptance["all"][key], acceptance["ask"][key] + acceptance["text"][key], key)
        speed = [line for line in lines if line["what"] == "speed"]
        self.assertEqual([line["spec"] for line in speed], ["1", "2", "3", "4", "5", "auto"])
        self.assertTrue(all(line["streams"] == 1 and line["tokens_per_s"] > 0 and line["times_off_decoding"] > 0 for line in speed))
        for line in speed[:5]:
            self.assertAlmostEqual(line["times_off_expected"] * cycles[line["spec"]], line["tau"], 2)
        self.assertNotIn("times_off_expected", speed[5])

    def test_long_blocks(self):
        """Also blocks longer than the rows of the table, and than the rows of logits that a step may have."""
        for block in (8, 33):
            with open(os.path.join(NANO, "config.json"), encoding="utf-8") as file:
                config = json.load(file)
            config.get("text_config", config)["dspark_block_size"] = block
            with open(os.path.join(self.folder.name, "config.json"), "w", encoding="utf-8") as file:
                json.dump(config, file)
            with open(self.input, "w", encoding="utf-8") as file:
                file.write(jsonl({"token_ids": [0, 40, 41]}))
            lines = self.bench(self.folder.name, "--load-format", "dummy", "--input", self.input, "--clients", "1", "--max-tokens", "1", "--temperature", "0", "--context", "512", "--max-seqs", "8").lines()
            cycles = [line["cycle"] for line in lines if line["what"] == "cost" and "cycle" in line]
            self.assertEqual(cycles, list(range(1, min(block, 31) + 1)))
            self.assertTrue(all("times_off_decoding" not in line for line in lines))  # answers of one token

    def test_one_setting_alone(self):
        for spec, measured in (("off", "off"), ("2", "2"), ("8", "5")):  # cut to the block
            lines = self.bench("--input", self.input, "--spec", spec, "--clients", "1", "--max-tokens", "6", "--threads", "1").lines()
            self.assertEqual([line["what"] for line in lines], ["environment", "speed"])
            speed = lines[1]
            self.assertEqual((speed["spec"], speed["streams"], speed["rounds"]), (measured, 1, 15))
            self.assertEqual(speed["drafts_a_cycle"] > 0, spec != "off")
            self.assertTrue(0 < speed["times_off_least"] <= speed["times_off"] <= speed["times_off_most"])

    def test_calibration(self):
        path = os.path.join(self.folder.name, "calibration.json")
        lines = self.bench("--input", self.input, "--calibrate", path, "--spec", "off", "--max-tokens", "40", "--threads", "1").lines()
        self.assertEqual([line["what"] for line in lines], ["environment", "calibration"])
        with open(path, encoding="utf-8") as file:
            written = json.load(file)
        self.assertEqual(written["temperatures"], lines[1]["temperatures"])
        self.assertEqual(len(written["temperatures"]), 5)
        line = jsonl({"token_ids": [0, 40, 41], "sampling_params": {"temperature": 0, "max_tokens": 30}})
        got = [run("generate", "--json", "--spec", "5", "--draft-calibration", file, stdin=line) for file in ("off", path)]
        self.assertNotIn("calibration", got[1].err)
        plain, fitted = (result.lines()[0]["choices"][0] for result in got)
        self.assertEqual(plain["token_ids"], fitted["token_ids"])
        self.assertNotEqual([r["confidence"] for r in plain["drafts"]], [r["confidence"] for r in fitted["drafts"]])

    def test_wrong_use(self):
        for content, says in (("{", "line 1"), (jsonl({"text": "a"}), "neither"), ("\n", "no prompt"), (jsonl({"prompt": 1}), "neither"), (jsonl({"token_ids": []}), "empty"), (jsonl({"token_ids": [-1]}), "line 1")):
            with open(self.input, "w", encoding="utf-8") as file:
                file.write(content)
            result = run("bench", "spec", "--input", self.input)
            self.assertIn(result.code, (1, 2), content)
            self.assertIn(says, result.err, content)
            self.assertEqual(result.out, b"" if isinstance(result.out, bytes) else "")
        self.assertIn("heldout.jsonl", run("bench", "spec", NANO).err)
        self.assertIn("serve or spec", run("bench").err)


if __name__ == "__main__":
    common.main()
