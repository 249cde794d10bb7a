#!/usr/bin/env python3
"""deepinfer score: shapes, sums, hash and logits agree with each other and with generate."""
import array
import ast
import math
import os
import pathlib
import signal
import struct
import subprocess
import tempfile

import common
from common import Case, NANO, environment, jsonl

TEXT = "The capital of France is"


def read_npy(path):
    data = pathlib.Path(path).read_bytes()
    assert data[:8] == b"\x93NUMPY\x01\x00"
    size = struct.unpack("<H", data[8:10])[0]
    assert (10 + size) % 64 == 0
    header = ast.literal_eval(data[10 : 10 + size].decode())
    assert header["descr"] == "<f4" and header["fortran_order"] is False
    values = array.array("f", data[10 + size :])
    rows, columns = header["shape"]
    assert len(values) == rows * columns
    return [values[i * columns : (i + 1) * columns] for i in range(rows)]


class Score(Case):
    def test_the_numbers_agree(self):
        with tempfile.TemporaryDirectory() as folder:
            file = folder + "/logits.npy"
            line = self.ok("score", NANO, "--json", "--prompt", TEXT, "--logits", file).lines()[0]
            rows = read_npy(file)
        self.assertEqual(set(line), {"tokens", "nll", "perplexity", "token_logprobs", "argmax", "logits_hash"})
        ids = [0] + [int(i) for i in self.ok("tokenize", NANO, "--prompt", TEXT).text.split()]
        self.assertEqual(line["tokens"], len(ids))
        self.assertEqual(len(rows), len(ids))
        self.assertEqual(len(rows[0]), 704)
        self.assertIsNone(line["token_logprobs"][0])
        for i, row in enumerate(rows):
            most = max(row)
            self.assertEqual(line["argmax"][i], list(row).index(most))
            if i + 1 < len(ids):
                expected = row[ids[i + 1]] - most - math.log(sum(math.exp(v - most) for v in row))
                self.assertAlmostEqual(line["token_logprobs"][i + 1], expected, places=4)
        self.assertAlmostEqual(line["nll"], -sum(line["token_logprobs"][1:]), places=5)
        self.assertAlmostEqual(line["perplexity"], math.exp(line["nll"] / (len(ids) - 1)), places=6)
        self.assertRegex(line["logits_hash"], "^[0-9a-f]{16}$")

    def test_every_way_in_gives_the_same(self):
        ids = "0," + ",".join(self.ok("tokenize", NANO, "--prompt", TEXT).text.split())
        a = self.ok("score", NANO, "--prompt", TEXT).text
        self.assertEqual(self.ok("score", NANO, stdin=TEXT).text, a)
        self.assertEqual(self.ok("score", NANO, "--token-ids", ids).text, a)
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "text")
            file.write_text(TEXT)
            self.assertEqual(self.ok("score", NANO, "--input", file).text, a)
        self.assertRegex(a, r"^tokens \d+\nnll [0-9.]+\nperplexity [0-9.]+\nlogits_hash [0-9a-f]{16}\n$")

    def test_settings_change_no_bit(self):
        lines = jsonl({"id": 1, "prompt": TEXT * 8}, {"id": 2, "token_ids": [0, 5, 6]})
        base = self.ok("score", NANO, "--json", stdin=lines).out
        for more in (("--threads", "1"), ("--threads", "3"), ("--chunk", "1"), ("--max-rows", "5"), ("--cpu-isa", "scalar"), ("--prefill", "compact"), ("--context", "600")):
            self.assertEqual(self.ok("score", NANO, "--json", *more, stdin=lines).out, base, more)

    def test_nothing_is_drafted(self):
        base = self.ok("score", NANO, "--prompt", TEXT)
        for options in ((), ("--spec", "auto"), ("--spec", "5")):
            result = self.ok("score", NANO, "--prompt", TEXT, "--log-level", "info", "--prefill", "compact", *options)
            self.assertEqual(result.text, base.text, options)
            self.assertNotIn("drafts come from", result.err)  # said with compact where --spec is not off

    def test_one_token_has_no_perplexity(self):
        line = self.ok("score", NANO, "--json", "--prompt", "").lines()[0]
        self.assertEqual((line["tokens"], line["nll"], line["perplexity"], line["token_logprobs"]), (1, 0, None, [None]))

    def test_bad_lines(self):
        result = common.run("score", NANO, "--json", stdin=jsonl({"id": 1}, {"id": 2, "prompt": "a", "token_ids": [1]}, {"id": 3, "token_ids": [704]}, {"id": 4, "token_ids": []}, {"id": 5, "prompt": 5}, {"id": 6, "promt": "a"}, {"id": 7, "prompt": "a"}))
        self.assertEqual(result.code, 1)
        lines = result.lines()
        self.assertEqual([l["id"] for l in lines], [1, 2, 3, 4, 5, 6, 7])
        self.assertEqual([l["error"]["param"] for l in lines[:6]], ["prompt", "prompt", "token_ids", "token_ids", "prompt", "promt"])
        self.assertIn("nll", lines[6])

    def test_no_ids_are_no_reason_to_read_the_input(self):
        for more in ((), ("--json",)):
            self.failed("score", NANO, "--token-ids", "", *more, stdin=TEXT, says="at least one token")

    def test_the_context(self):
        result = self.failed("score", NANO, "--context", "4", "--token-ids", "1,2,3,4,5", says="5 tokens")
        self.assertIn("4", result.err)

    def test_logits_of_one_input_only(self):
        with tempfile.TemporaryDirectory() as folder:
            result = common.run("score", NANO, "--json", "--logits", folder + "/a.npy", stdin=jsonl({"prompt": "a"}, {"prompt": "b"}))
            self.assertEqual(result.code, 1)
            self.assertEqual(result.lines()[1]["error"]["param"], "logits")
            blank = self.ok("score", NANO, "--json", "--logits", folder + "/b.npy", stdin="\n \n" + jsonl({"prompt": "a"}) + "\n")
            self.assertEqual(blank.out, self.ok("score", NANO, "--json", "--prompt", "a").out)
            self.assertTrue(pathlib.Path(folder, "b.npy").exists())
            self.failed("score", NANO, "--logits", folder + "/no/a.npy", "--prompt", "a", says="a.npy")

    def test_an_interrupt_ends_it(self):
        process = subprocess.Popen([common.BINARY, "score", NANO, "--json"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        process.stdin.write(jsonl({"prompt": "a"}).encode())
        process.stdin.flush()
        self.assertTrue(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 130)
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()


class FullDisk(Case):
    def test_output_that_cannot_be_written(self):
        with open("/dev/full", "wb") as full:
            for arguments in (("score", NANO, "--prompt", "a"), ("tokenize", "--prompt", "a"), ("generate", NANO, "--prompt", "a", "--max-tokens", "2"), ("generate", NANO, "--json", "--prompt", "a", "--max-tokens", "2"), ("--help",)):
                done = subprocess.run([common.BINARY, *arguments], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, env=environment())
                self.assertEqual(done.returncode, 1, arguments)
                self.assertIn(b"cannot write", done.stderr)


if __name__ == "__main__":
    common.main()
