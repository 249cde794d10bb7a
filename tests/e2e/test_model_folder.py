#!/usr/bin/env python3
"""Model folders in which something is not what its name says."""
import os
import pathlib
import shutil
import tempfile

import common
import http_server
from common import NANO, Case, jsonl

GREEDY = {"temperature": 0, "max_tokens": 5, "ignore_eos": True, "logits_hash": True}
IDS = [3 + i * 37 % 600 for i in range(100)]


class Folder(Case):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = pathlib.Path(scratch.name)

    def copy(self, name="model"):
        return pathlib.Path(shutil.copytree(NANO, self.scratch / name, ignore=shutil.ignore_patterns("golden")))

    def generate(self, model, *more):
        line = self.ok("generate", model, "--json", *more, stdin=jsonl({"token_ids": IDS, "sampling_params": GREEDY})).lines()[0]
        return line["choices"], line["usage"]["cached_tokens"], line["fingerprint"]


class Odd(Folder):
    def test_what_is_no_file_is_refused(self):
        for name in ("config.json", "generation_config.json", "engram.json", "tokenizer.json", "model.safetensors.index.json", "model-00002-of-00004.safetensors"):
            for kind in ("link", "pipe", "folder"):
                model = self.copy(f"{name}-{kind}")
                (model / name).unlink()
                {"link": lambda p: p.symlink_to("nowhere"), "pipe": os.mkfifo, "folder": os.mkdir}[kind](model / name)
                with self.subTest(name=name, kind=kind):
                    result = self.failed("generate", model, "--prompt", "a", "--max-tokens", "1", says=name, timeout=60)
                    self.assertEqual(result.out, b"")

    def test_a_link_to_a_file_is_a_file(self):
        model = self.copy()
        for path in list(model.iterdir()):
            path.rename(self.scratch / path.name)
            path.symlink_to(self.scratch / path.name)
        self.assertEqual(self.generate(model), self.generate(NANO))

    def test_a_calibration_that_leads_nowhere_is_reported(self):
        model = self.copy()
        (model / "draft_calibration.json").symlink_to("nowhere")
        result = self.ok("generate", model, "--prompt", "a", "--max-tokens", "1", "--spec", "auto")
        self.assertIn("drafts go without calibration", result.err)

    def test_a_generation_config_that_is_asked_for(self):
        model = self.copy()
        arguments = ("generate", model, "--prompt", "a", "--max-tokens", "1")
        self.ok(*arguments, "--generation-config", "model")
        (model / "generation_config.json").unlink()
        self.ok(*arguments)
        self.failed(*arguments, "--generation-config", "model", says="has no generation_config.json")

    def test_a_server_without_a_tokenizer_says_so(self):
        model = self.copy()
        with http_server.Server(model=str(model)) as server:
            self.assertNotIn("tokenizer", server.log())
        (model / "tokenizer.json").unlink()
        with http_server.Server(model=str(model)) as server:
            self.assertEqual(server.log().count("has no tokenizer.json: /v1/completions takes and gives token ids"), 1)


if __name__ == "__main__":
    common.main()
