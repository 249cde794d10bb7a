#!/usr/bin/env python3
"""What identifies a model, and model folders in which something is not what its name says."""
import json
import os
import pathlib
import shutil
import tempfile

import common
import http_server
from common import NANO, Case, jsonl

GREEDY = {"temperature": 0, "max_tokens": 5, "ignore_eos": True, "logits_hash": True}
IDS = [3 + i * 37 % 600 for i in range(100)]


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


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


class Identity(Folder):
    CHANGES = (
        ("config.json", lambda c: c["text_config"].update(swiglu_limit=3.0)),
        ("config.json", lambda c: c["text_config"]["rope_scaling"].update(factor=40)),
        ("config.json", lambda c: c["text_config"].update(index_topk=16)),
        ("engram.json", lambda e: [layer.update(multipliers=[str(int(m) + 2) for m in layer["multipliers"]]) for layer in e["layers"]]),
    )

    def test_another_config_is_another_model(self):
        cache = ("--cache-dir", self.scratch / "cache")
        _, cached, fingerprint = self.generate(NANO, *cache)
        self.assertEqual(cached, 0)
        self.assertEqual(self.generate(NANO, *cache)[1:], (99, fingerprint))
        seen = {fingerprint}
        for i, (name, change) in enumerate(self.CHANGES):
            model = self.copy(str(i))
            edit(model / name, change)
            answer = self.generate(model, *cache)
            self.assertEqual(answer, self.generate(model))
            self.assertEqual(answer[1], 0)
            self.assertNotIn(answer[2], seen)
            seen.add(answer[2])

    def test_spelling_and_limits_are_not_the_model(self):
        cache = ("--cache-dir", self.scratch / "cache")
        fingerprint = self.generate(NANO, *cache)[2]
        model = self.copy()
        edit(model / "config.json", lambda c: c["text_config"].update(rope_theta=10000.0, max_position_embeddings=300))
        edit(model / "engram.json", lambda e: None)
        self.assertEqual(self.generate(model, *cache)[1:], (99, fingerprint))

    def test_the_tokenizer_is_in_the_fingerprint_alone(self):
        cache = ("--cache-dir", self.scratch / "cache")
        fingerprint = self.generate(NANO, *cache)[2].split("-")
        model = self.copy()
        with open(model / "tokenizer.json", "a") as file:
            file.write(" ")
        other = self.generate(model, *cache)
        self.assertEqual(other[1], 99)
        self.assertNotEqual(other[2].split("-"), fingerprint)
        self.assertEqual(other[2].split("-")[:2] + other[2].split("-")[3:], fingerprint[:2] + fingerprint[3:])
        shutil.copy(pathlib.Path(NANO, "tokenizer.json"), model)
        edit(model / "generation_config.json", lambda c: c.update(eos_token_id=[1, 5]))
        ends = self.generate(model, *cache)
        self.assertEqual(ends[1], 99)
        self.assertNotEqual(ends[2].split("-")[2], fingerprint[2])

    def test_made_up_weights(self):
        dummy = ("--load-format", "dummy")
        fingerprint = self.generate(NANO, *dummy)[2]
        self.assertEqual(self.generate(NANO, *dummy)[2], fingerprint)
        self.assertNotEqual(self.generate(NANO)[2], fingerprint)
        model = self.copy()
        edit(model / "config.json", lambda c: c["text_config"].update(swiglu_limit=3.0))
        self.assertNotEqual(self.generate(model, *dummy)[2], fingerprint)


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
