# labels: serial
"""deepinfer inspect: tables, JSON, memory plan, incomplete and broken checkpoints.

    test_inspect.py DEEPINFER
"""
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NANO, RELEASE = os.path.join(TESTS, "data", "nano"), os.path.join(TESTS, "data", "release", "config.json")
TINY = os.path.join(os.path.dirname(TESTS), "models", "tiny")
sys.path.insert(0, os.path.join(TESTS, "tools"))
import sparse_checkpoint  # noqa: E402

PROGRAM = None
SHARD = "model-00004-of-00004.safetensors"


def run(*arguments):
    done = subprocess.run([PROGRAM, "inspect", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


def without_machine(text):
    """The part that does not depend on what else this machine does, and on the folder's name."""
    return text[:text.index("\nThis machine")].split("\n", 1)[1]


class Inspect(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="deepinfer-test-")
        self.addCleanup(shutil.rmtree, self.folder)

    def inspect_json(self, *arguments, code=0):
        status, out, err = run(*arguments, "--json")
        self.assertEqual(status, code, err)
        self.assertEqual(out.count("\n"), 1)
        return json.loads(out)

    def copy(self):
        path = os.path.join(self.folder, "model")
        shutil.copytree(NANO, path, ignore=shutil.ignore_patterns("golden"))
        return path

    def test_release_budget(self):
        """The published byte budget, number for number."""
        code, out, err = run(RELEASE)
        self.assertEqual((code, err), (0, ""))
        for number in ("126,617,408", "5,064,696,320", "61,868,544", "13,589,544,960", "543,581,798,400", "35,389,440",
                       "1,415,577,600", "1,966,848", "78,673,920", "983,094", "39,323,760", "10,240", "409,600",
                       "550,242,348,144", "661,913,600", "661,918,720", "485,268,480", "314,654,720",
                       "552,366,103,664", "196,613,849,600", "14,225,362,530", "763,205,315,794", "510,286,023,000",
                       "96,085 tensors", "5,069,721,600", "81,835,008", "4,512,153,600", "1,416,960,000",
                       "157,409,280", "157,295,040", "839,680", "315,043,840", "12,672", "1,323,827,200",
                       "13,035,097,920", "890 a position", "2 window, 4 full, 4 reindex, 30 reuse"):
            self.assertIn(number, out)

    def test_release_json(self):
        j = self.inspect_json(RELEASE, "--context", "1048576", "--max-seqs", "3")
        self.assertEqual(list(j), ["architecture", "parameters", "bytes", "plan", "machine"])
        self.assertEqual(j["parameters"]["total"], 763205315794)
        self.assertEqual(j["parameters"]["total"], sum(j["parameters"]["parts"].values()))
        self.assertEqual(j["bytes"]["total"], sum(j["bytes"]["parts"].values()))
        self.assertEqual(round(j["parameters"]["active_prompt"] / 1e7), 790)
        self.assertEqual(round(j["parameters"]["active_decoded"] / 1e7), 1613)
        self.assertEqual(j["bytes"]["decoded_token"]["total"], 13035097920)
        plan = j["plan"]
        self.assertEqual((plan["context"], plan["max_seqs"]), (1048576, 3))
        self.assertEqual(plan["sequence_per_position"], 890)
        self.assertEqual(plan["sequence"], plan["sequence_fixed"] + 890 * 1048576)
        self.assertEqual(plan["sequences"], 3 * plan["sequence"])
        # window rings of 40 layers and three draft stages, open rows of three, three n-gram ids
        self.assertEqual(plan["sequence_fixed"], 528 * 128 * (40 + 3) + 3 * 4096 + 64)
        self.assertEqual(plan["total"], sum(plan[k] for k in (
            "weights_mapped", "weights_repacked", "tables_mapped", "sequences", "step", "draft", "workspace", "program")))
        self.assertFalse(j["machine"]["fits"] and j["machine"]["memory"] < plan["private"])
        self.assertEqual(len(j["architecture"]["layer_table"]), 40)

    def test_draft_head(self):
        """--spec decides whether the plan counts it, as it decides whether the engine loads it."""
        plans = {}
        for options, says in (("--spec", "off"), "(not loaded: --spec off)"), ((), "experts\n"), (
                ("--spec", "3", "--prefill", "compact"), "(not loaded: --prefill compact)"), (("--spec", "4", "--max-rows", "1"), "(not loaded: --max-rows 1)"):
            code, out, _ = run(TINY, "--context", "1000", *options)
            self.assertEqual(code, 0)
            self.assertIn(says, out[out.index("  draft head  "):].split("\n", 1)[0] + "\n")
            plans[options[:2]] = self.inspect_json(TINY, "--context", "1000", *options)["plan"]
        off, on, compact, _ = plans.values()
        self.assertEqual((off["draft"], off["not_loaded"]), (0, 4140888))
        self.assertEqual(compact["not_loaded"], 4140888)
        one = self.inspect_json(TINY, "--context", "1000", "--max-rows", "1")["plan"]
        self.assertEqual((one["draft"], one["not_loaded"]), (0, 4140888))
        # prompt look-up: 32 bytes, a link for each id, and slots for a power of two of them
        self.assertEqual(compact["draft"] // compact["max_seqs"] // 4, 1000 + 1 + 1024 + 8)
        self.assertEqual(on["not_loaded"], 0)
        self.assertGreater(on["draft"], 0)
        self.assertGreater(on["sequence_fixed"], off["sequence_fixed"])
        self.assertGreater(on["total"], off["total"] + on["draft"] + 4140888)

    def test_sparse_release(self):
        """Headers alone decide: full shards of holes, and shards that end after the header."""
        whole, cut = os.path.join(self.folder, "whole"), os.path.join(self.folder, "cut")
        self.assertEqual(sparse_checkpoint.write(RELEASE, whole, False), 510286023000)
        sparse_checkpoint.write(RELEASE, cut, True)
        code, out, err = run(whole, "--context", "4096")
        self.assertEqual((code, err), (0, ""))
        code, out_cut, err = run(cut, "--context", "4096")
        self.assertEqual(code, 1)
        self.assertEqual(without_machine(out), without_machine(out_cut))
        self.assertIn("510.29 GB of data are missing", err)
        for shard in range(1, 49):
            self.assertIn(f"model-{shard:05}-of-00048.safetensors: ", err)
        self.assertEqual(len(self.inspect_json(cut, code=1)["missing_data"]), 48)

    def test_tensors(self):
        tensors = self.inspect_json(NANO, "--tensors")["tensors"]
        self.assertEqual(len(tensors), 1499)
        self.assertEqual(sum(t["bytes"] for t in tensors), 5683572)
        by_name = {t["name"]: t for t in tensors}
        self.assertEqual(by_name["layers.1.engram.embed.weight"], {
            "name": "layers.1.engram.embed.weight", "dtype": "F8_E4M3", "shape": [660, 32], "bytes": 21120, "shard": SHARD})
        code, out, _ = run(NANO, "--tensors")
        self.assertEqual(code, 0)
        lines = out[out.index("\nTensors\n"):].strip().split("\n")[1:]
        self.assertEqual(len(lines), 1499)
        self.assertEqual(len(self.inspect_json(os.path.join(NANO, "config.json"), "--tensors")["tensors"]), 1499)

    def test_default_model(self):
        code, out, _ = run()
        self.assertEqual(code, 0)
        self.assertIn("34,113,618", out)

    def test_broken(self):
        model = self.copy()
        path = os.path.join(model, SHARD)
        with open(path, "rb") as file:
            data = file.read()
        with open(path, "wb") as file:
            file.write(data.replace(b"layers.1.engram.q_weight", b"layers.1.engram.q_weihgt"))
        os.remove(os.path.join(model, "model-00002-of-00004.safetensors"))
        code, out, err = run(model)
        self.assertEqual(code, 1)
        self.assertIn("= all", out)
        for text in ("model-00002-of-00004.safetensors: cannot be opened", "layers.1.engram.q_weight is missing",
                     "layers.1.engram.q_weihgt in " + SHARD + " is unexpected"):
            self.assertIn(text, err)
        self.assertGreaterEqual(len(self.inspect_json(model, code=1)["faults"]), 4)

    def test_bad_config(self):
        model = self.copy()
        path = os.path.join(model, "config.json")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace('"hc_mult": 4', '"hc_mult": 40'))
        code, out, err = run(model)
        self.assertEqual((code, out), (1, ""))
        self.assertIn("text_config.hc_mult is 40; it must be in 1 .. 8", err)
        os.remove(path)
        self.assertEqual(run(model)[0], 1)
        code, _, err = run(os.path.join(self.folder, "nothing"))
        self.assertEqual(code, 1)
        self.assertIn("nothing", err)

    def test_options(self):
        code, out, err = run(NANO, "--context", "1048577")
        self.assertNotEqual(code, 0)
        self.assertIn("context", err)
        code, out, err = run(TINY, "--context", "16385")
        self.assertNotEqual(code, 0)
        self.assertIn("16384", err)
        for option in (["--prompt", "x"], ["--input", "x"], ["--token-ids", "1"], ["--unordered"]):
            code, out, err = run(NANO, *option)
            self.assertEqual((code, out), (2, ""))
            self.assertIn(option[0], err)

    def test_closed_pipe(self):
        with subprocess.Popen([PROGRAM, "inspect", NANO, "--tensors"], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL) as program:
            program.stdout.close()
            self.assertLess(program.wait(timeout=60), 128)

    def test_little_memory(self):
        """Headers of 510 GB are read with little memory."""
        cut = os.path.join(self.folder, "cut")
        sparse_checkpoint.write(RELEASE, cut, True)
        subprocess.run([PROGRAM, "inspect", cut], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        self.assertLess(peak, 1 << 30)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
