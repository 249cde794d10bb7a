#!/usr/bin/env python3
"""deepinfer generate: text, ids, JSON lines, chat forms, resuming, faults, interruption."""
import json
import pathlib
import shutil
import signal
import struct
import subprocess
import tempfile

import common
from common import Case, NANO, TINY, environment, jsonl, run

GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "logits_hash": True}
CHOICE = {"index", "text", "token_ids", "finish_reason"}
USAGE = {"prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "draft_tokens", "accepted_draft_tokens"}
TIMINGS = {"queue_ms", "prefill_ms", "first_token_ms", "total_ms"}


def essence(line):
    """What must not depend on how it was run. A seed that is not given is drawn; what a cache holds and how much is drafted depends on time."""
    kept = {k: v for k, v in line.items() if k not in ("timings", "fingerprint", "seed")}
    kept["usage"] = {k: v for k, v in line["usage"].items() if k not in ("cached_tokens", "draft_tokens", "accepted_draft_tokens")}
    return json.dumps(kept, sort_keys=True)


class Text(Case):
    def test_every_way_in_gives_the_same(self):
        flags = ("--temperature", "0", "--max-tokens", "8")
        a = self.ok("generate", NANO, *flags, "--prompt", "Hello")
        ids = "0 " + self.ok("tokenize", NANO, "--prompt", "Hello").text
        self.assertEqual(self.ok("generate", NANO, *flags, stdin="Hello").out, a.out)
        self.assertEqual(self.ok("generate", NANO, *flags, "--token-ids", ids).out, a.out)
        line = self.ok("generate", NANO, *flags, "--json", "--prompt", "Hello").lines()[0]
        self.assertEqual(line["choices"][0]["text"] + "\n", a.text)
        self.assertIn("[prompt", a.err)
        self.assertIn("/s", a.err)
        self.assertEqual(self.ok("generate", NANO, *flags, "--prompt", "Hello", "--quiet").err, "")

    def test_a_seed_is_reported_and_makes_the_answer_again(self):
        a = self.ok("generate", NANO, "--prompt", "Hello", "--max-tokens", "12")
        seed = a.err.split("seed ")[1].split("]")[0]
        self.assertEqual(self.ok("generate", NANO, "--prompt", "Hello", "--max-tokens", "12", "--seed", seed).out, a.out)

    def test_input_and_output_files(self):
        with tempfile.TemporaryDirectory() as folder:
            source, sink = pathlib.Path(folder, "in"), pathlib.Path(folder, "out")
            source.write_text("Hello")
            a = self.ok("generate", NANO, "--temperature", "0", "--max-tokens", "4", "--input", source)
            b = self.ok("generate", NANO, "--temperature", "0", "--max-tokens", "4", "--input", source, "--output", sink)
            self.assertEqual((b.out, sink.read_bytes()), (b"", a.out))

    def test_faults(self):
        self.failed("generate", NANO, stdin=b"a\xff", says="UTF-8")
        self.failed("generate", NANO, "--token-ids", "704", says="703")
        self.failed("generate", NANO, "--token-ids", "", says="at least one token")
        self.failed("generate", NANO, "--context", "4", "--token-ids", "1,2,3,4", says="no room")
        self.failed("generate", NANO, "--limit-prompt-bytes", "3", "--prompt", "abcd", says="limit-prompt-bytes")
        self.failed("generate", NANO, "--limit-prompt-bytes", "3", stdin="abcd", says="limit-prompt-bytes")
        self.failed("generate", NANO, "--prompt", "a", "--stop-token-ids", "1,x", says="stop-token-ids")
        self.usage("generate", NANO, "--prompt", "a", "--token-ids", "1", says="exclude")


class Lines(Case):
    def test_shapes(self):
        line = self.ok("generate", NANO, "--json", stdin=jsonl({"id": 7, "prompt": "Hello", "sampling_params": GREEDY})).lines()[0]
        self.assertEqual(set(line), {"id", "choices", "usage", "seed", "fingerprint", "timings"})
        self.assertEqual(line["id"], 7)
        choice = line["choices"][0]
        self.assertEqual(set(choice), CHOICE | {"logits_hash"})
        self.assertRegex(choice["logits_hash"], "^[0-9a-f]{16}$")
        self.assertEqual((choice["index"], choice["finish_reason"], len(choice["token_ids"])), (0, "length", 8))
        self.assertEqual(set(line["usage"]), USAGE)
        self.assertEqual(line["usage"]["completion_tokens"], 8)
        self.assertEqual(set(line["timings"]), TIMINGS)
        self.assertIsInstance(line["seed"], int)
        self.assertIn("exact", line["fingerprint"])

    def test_ids_come_back_as_they_were(self):
        ids = ['"a"', "1", "1.50", "null", "[1]", '{"x":1}', "123456789012345678901234567890"]
        data = "".join('{"id": %s, "token_ids": [5], "sampling_params": {"max_tokens": 1}}\n' % i for i in ids)
        result = self.ok("generate", NANO, "--json", stdin=data)
        for line, i in zip(result.text.split("\n"), ids):
            self.assertIn('"id":%s,' % i, line)

    def test_logprobs(self):
        params = dict(GREEDY, logprobs=3, prompt_logprobs=2)
        line = self.ok("generate", NANO, "--json", stdin=jsonl({"token_ids": [0, 9, 8, 7], "sampling_params": params})).lines()[0]
        choice = line["choices"][0]
        self.assertEqual(len(choice["logprobs"]), 8)
        for item, token in zip(choice["logprobs"], choice["token_ids"]):
            self.assertEqual(set(item), {"token_id", "logprob", "top"})
            self.assertEqual((item["token_id"], len(item["top"])), (token, 3))
            self.assertEqual(item["top"][0], [token, item["logprob"]])  # greedy
        self.assertEqual([p and p["token_id"] for p in choice["prompt_logprobs"]], [None, 9, 8, 7])
        ids = [0, 9, 8, 7] + choice["token_ids"]
        score = self.ok("score", NANO, "--json", "--token-ids", ",".join(map(str, ids))).lines()[0]
        expected = score["token_logprobs"]
        self.assertEqual([p and p["logprob"] for p in choice["prompt_logprobs"]], expected[:4])
        self.assertEqual([p["logprob"] for p in choice["logprobs"]], expected[4:])

    def test_samples(self):
        params = dict(GREEDY, n=3, temperature=1, seed=18446744073709551615)
        line = self.ok("generate", NANO, "--json", stdin=jsonl({"prompt": "Hello", "sampling_params": params})).lines()[0]
        self.assertEqual(line["seed"], 18446744073709551615)
        self.assertEqual([c["index"] for c in line["choices"]], [0, 1, 2])
        self.assertEqual(len({c["logits_hash"] for c in line["choices"]}), 3)
        self.assertEqual(line["usage"]["completion_tokens"], 24)
        again = self.ok("generate", NANO, "--json", "--seed", "18446744073709551615", stdin=jsonl({"prompt": "Hello", "sampling_params": dict(GREEDY, temperature=1)})).lines()[0]
        self.assertEqual(again["choices"][0], line["choices"][0])

    def test_settings_change_no_bit(self):
        requests = jsonl(*({"id": i, "prompt": "Hello " * (1 + i * 9), "sampling_params": dict(GREEDY, temperature=i % 2, seed=i)} for i in range(6)))
        base = [essence(l) for l in self.ok("generate", NANO, "--json", stdin=requests).lines()]
        for more in (("--threads", "1"), ("--threads", "3"), ("--chunk", "1"), ("--chunk", "7"), ("--max-rows", "2"), ("--cpu-isa", "scalar"), ("--concurrency", "1"), ("--context", "700")):
            lines = self.ok("generate", NANO, "--json", *more, stdin=requests).lines()
            self.assertEqual([essence(l) for l in lines], base, more)
        unordered = self.ok("generate", NANO, "--json", "--unordered", stdin=requests).lines()
        self.assertEqual(sorted(map(essence, unordered)), sorted(base))

    def test_stop(self):
        ids = [int(i) for i in self.ok("tokenize", NANO, "--prompt", "The quick brown fox").text.split()]
        params = {"golden_token_ids": ids, "max_tokens": len(ids), "stop": ["zebra", "quick br"]}
        line = self.ok("generate", NANO, "--json", stdin=jsonl({"prompt": "x", "sampling_params": params})).lines()[0]
        choice = line["choices"][0]
        self.assertEqual((choice["text"], choice["finish_reason"]), ("The ", "stop"))
        self.assertEqual(choice["token_ids"], ids[: len(choice["token_ids"])])
        self.assertLess(len(choice["token_ids"]), len(ids))
        eos = dict(params, golden_token_ids=[ids[0], 1, ids[1]], stop=[])
        choice = self.ok("generate", NANO, "--json", stdin=jsonl({"prompt": "x", "sampling_params": eos})).lines()[0]["choices"][0]
        self.assertEqual((choice["token_ids"], choice["finish_reason"]), ([ids[0], 1], "stop"))
        self.assertNotIn("sentence", choice["text"])

    def test_faults_stand_in_their_place(self):
        faults = [
            ({"prompt": "a", "sampling_params": {"temperature": -1}}, "temperature"),
            ({"prompt": "a", "sampling_params": {"logit_bias": {"5": 1000}}}, "logit_bias"),
            ({"prompt": "a", "sampling_params": {"temprature": 1}}, "temprature"),
            ({"prompt": "a", "sampling_params": {"n": 0}}, "n"),
            ({"prompt": "a", "sampling_params": {"n": 1000}}, "n"),
            ({"prompt": "a", "sampling_params": {"stop": [""]}}, "stop"),
            ({"prompt": "a", "sampling_params": {"stop": ["x"] * 17}}, "stop"),
            ({"prompt": "a", "sampling_params": {"so_args": {"schema_type": "json", "schema": "{"}}}, "so_args.schema"),
            ({"prompt": "a", "sampling_params": {"so_args": {"schema_type": "xml"}}}, "so_args.schema_type"),
            ({"prompt": "a", "sampling_params": {"top_p": 0}}, "top_p"),
            ({"prompt": "a", "sampling_params": {"max_tokens": "5"}}, "max_tokens"),
            ({"prompt": "a", "priority": "high"}, "priority"),
            ({"prompt": "a", "thinking": True}, "thinking"),
            ({"prompt": "a", "token_ids": [1]}, "prompt"),
            ({"promt": "a"}, "promt"),
            ({}, "prompt"),
            ({"prompt": 5}, "prompt"),
            ({"token_ids": []}, "prompt"),
            ({"token_ids": [704]}, "token_ids"),
            ({"token_ids": [5] * 101}, "prompt"),
            ({"messages": []}, "messages"),
            ({"messages": [{"role": "wizard", "content": "a"}]}, "messages[0].role"),
        ]
        data = ""
        for i, (fault, _) in enumerate(faults):
            data += jsonl(dict(fault, id=i)) + jsonl({"id": "good", "token_ids": [5], "sampling_params": dict(GREEDY, max_tokens=1)})
        result = run("generate", NANO, "--json", "--context", "100", stdin=data)
        self.assertEqual(result.code, 1)
        lines = result.lines()
        self.assertEqual(len(lines), 2 * len(faults))
        for i, (fault, param) in enumerate(faults):
            self.assertEqual(lines[2 * i]["id"], i)
            self.assertEqual(lines[2 * i]["line"], 2 * i + 1)
            self.assertEqual(lines[2 * i]["error"]["param"], param, fault)
            self.assertEqual(lines[2 * i + 1]["choices"][0]["finish_reason"], "length")

    def test_limits_of_size(self):
        """The same as over HTTP; each refusal names its option."""
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
        ask = [{"role": "user", "content": "Hi"}]
        cases = (("messages", {"messages": ask * 2}), ("tools", {"messages": ask, "tools": [tool] * 2}),
                 ("logit-bias", {"prompt": "a", "sampling_params": {"logit_bias": {"5": 1, "6": 1}}}),
                 ("json-depth", {"prompt": "a", "sampling_params": {"stop": [[[[[[[["x"]]]]]]]]}}))
        options = ("--limit-messages", 1, "--limit-tools", 1, "--limit-logit-bias", 1, "--limit-json-depth", 8)
        result = run("generate", "--json", *options, stdin=jsonl(*(line for _, line in cases)))
        self.assertEqual(result.code, 1)
        lines = result.lines()
        self.assertEqual(len(lines), len(cases))
        for (name, _), line in zip(cases, lines):
            self.assertIn(f"--limit-{name}", line["error"]["message"])
        within = [{"messages": ask, "tools": [tool]}, {"prompt": "a", "sampling_params": {"logit_bias": {"5": 1}, "stop": ["x"]}}]
        for line in within:
            line["sampling_params"] = dict(line.get("sampling_params", {}), max_tokens=1)
        self.ok("generate", "--json", *options, stdin=jsonl(*within))

    def test_the_room_in_the_context(self):
        params = dict(GREEDY, max_tokens=1000)
        line = self.ok("generate", NANO, "--json", "--context", "20", stdin=jsonl({"token_ids": [5] * 15, "sampling_params": params})).lines()[0]
        self.assertEqual((len(line["choices"][0]["token_ids"]), line["choices"][0]["finish_reason"]), (5, "length"))
        result = run("generate", NANO, "--json", "--context", "20", stdin=jsonl({"token_ids": [5] * 20}))
        self.assertEqual(result.lines()[0]["error"]["code"], "context_length_exceeded")

    def test_generation_config(self):
        base = ("generate", "--json", "--prompt", "Hello", "--seed", "3", "--max-tokens", "16")
        text = lambda *more: self.ok(*base, *more).lines()[0]["choices"][0]["token_ids"]
        self.assertEqual(text("--generation-config", "model"), text("--top-p", "0.95"))
        self.assertEqual(text("--generation-config", "model", "--temperature", "0"), text("--temperature", "0"))

    def test_results_come_while_input_is_still_open(self):
        process = subprocess.Popen([common.BINARY, "generate", NANO, "--json"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        for i in range(3):
            process.stdin.write(jsonl({"id": i, "prompt": "a", "sampling_params": {"max_tokens": 2}}).encode())
            process.stdin.flush()
            self.assertEqual(json.loads(process.stdout.readline())["id"], i)
        process.stdin.close()
        self.assertEqual(process.wait(60), 0)
        process.stdout.close()
        process.stderr.close()

    def test_compact(self):
        requests = jsonl({"id": 1, "token_ids": list(range(100, 120)), "sampling_params": GREEDY}, {"id": 2, "token_ids": list(range(100, 200)), "sampling_params": GREEDY})
        off = self.ok("generate", NANO, "--json", stdin=requests).lines()
        compact = [self.ok("generate", NANO, "--json", "--prefill", "compact", "--chunk", c, stdin=requests).lines() for c in (0, 1, 9)]
        self.assertEqual(compact[0][0]["choices"], off[0]["choices"])  # not longer than what is kept
        self.assertNotEqual(compact[0][1]["choices"], off[1]["choices"])
        for other in compact[1:]:
            self.assertEqual(list(map(essence, other)), list(map(essence, compact[0])))
        result = run("generate", NANO, "--json", "--prefill", "compact", stdin=jsonl({"prompt": "a", "sampling_params": {"prompt_logprobs": 1}}))
        self.assertEqual(result.lines()[0]["error"]["param"], "prompt_logprobs")

    def test_the_log_says_when_drafts_come_from_look_up_alone(self):
        for options, lines in (("--spec", "auto", "--prefill", "compact"), 1), (("--prefill", "compact"), 1), (("--spec", "auto"), 0), (("--spec", "off", "--prefill", "compact"), 0), ((), 0):
            result = self.ok("generate", NANO, "--prompt", "a", "--max-tokens", "1", "--log-level", "info", *options)
            self.assertEqual(result.err.count("drafts come from prompt look-up alone: the draft head does not go with --prefill compact"), lines, options)

    def test_records_of_drafts(self):
        line = {"prompt": "I would like to book a table", "sampling_params": {"temperature": 0, "max_tokens": 40, "n": 2, "seed": 1}}
        plain = self.ok("generate", "--json", stdin=jsonl(line)).lines()[0]
        drafted = self.ok("generate", "--json", "--spec", "5", stdin=jsonl(line)).lines()[0]
        self.assertEqual([c["token_ids"] for c in plain["choices"]], [c["token_ids"] for c in drafted["choices"]])
        self.assertNotIn("drafts", plain["choices"][0])
        prompt, records = plain["usage"]["prompt_tokens"], []
        for choice in drafted["choices"]:
            self.assertGreater(len(choice["drafts"]), 0)
            for record in choice["drafts"]:
                self.assertEqual(set(record), {"position", "drafted", "accepted", "confidence"})
                self.assertEqual(len(record["drafted"]), len(record["confidence"]))
                at, right = record["position"] - prompt, record["accepted"]
                self.assertEqual(record["drafted"][:right], choice["token_ids"][at:at + right])
            records += choice["drafts"]
        self.assertEqual(sum(len(r["drafted"]) for r in records), drafted["usage"]["draft_tokens"])
        self.assertEqual(sum(r["accepted"] for r in records), drafted["usage"]["accepted_draft_tokens"])


class Chat(Case):
    ASK = [{"role": "user", "content": "I would like to book a table for two people in San Jose."}]

    def test_an_answer(self):
        params = {"temperature": 0, "max_tokens": 60}
        line = self.ok("generate", "--json", stdin=jsonl({"id": 1, "messages": self.ASK, "sampling_params": params})).lines()[0]
        choice = line["choices"][0]
        self.assertEqual(choice["finish_reason"], "stop")
        self.assertTrue(choice["text"].endswith(("?", ".", "!")), choice["text"])
        self.assertNotIn("reasoning", choice)
        self.assertEqual(choice["token_ids"][-1], 1)
        chat = self.ok("chat", "--temperature", "0", "--prompt", self.ASK[0]["content"])
        self.assertEqual(chat.text, choice["text"] + "\n")

    def test_thinking(self):
        params = {"temperature": 0, "max_tokens": 200}
        for source in ({"thinking": True}, {}):
            flags = () if source else ("--thinking", "on")
            line = self.ok("generate", "--json", *flags, stdin=jsonl(dict(source, messages=self.ASK, sampling_params=params))).lines()[0]
            self.assertGreater(line["usage"]["reasoning_tokens"], 0)
            self.assertIn("reasoning", line["choices"][0])
            self.assertNotIn("</think>", line["choices"][0]["text"])

    def test_faults_are_named(self):
        tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
        for more, param in (({"tools": [tool]}, "tools"), ({"response_format": {"type": "json_object"}}, "response_format")):
            result = run("generate", "--json", stdin=jsonl(dict(more, messages=self.ASK)))
            self.assertEqual(result.code, 1)
            self.assertTrue(result.lines()[0]["error"]["param"].startswith(param))


class Resume(Case):
    def test_a_run_goes_on_where_it_stopped(self):
        requests = [{"id": "r%d" % i, "prompt": "Hello " * (i + 1), "sampling_params": dict(GREEDY, seed=i)} for i in range(8)]
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder, "out.jsonl")
            whole = self.ok("generate", NANO, "--json", stdin=jsonl(*requests)).lines()
            first = self.ok("generate", NANO, "--json", "--output", out, stdin=jsonl(*requests[:3]))
            self.assertEqual(first.out, b"")
            with out.open("ab") as file:
                file.write(b'{"id": "r7", "line": 1, "error": {"code": "x"}}\n{"id": "r3", "choi')  # a failed line, and half a line
            second = self.ok("generate", NANO, "--json", "--output", out, stdin=jsonl(*requests))
            self.assertIn("3 prompts were skipped", second.err)
            self.assertIn("dropped", second.err)
            lines = [json.loads(l) for l in out.read_text().splitlines()]
            results = [l for l in lines if "choices" in l]
            self.assertEqual(list(map(essence, results)), list(map(essence, whole)))
            third = self.ok("generate", NANO, "--json", "--output", out, stdin=jsonl(*requests))
            self.assertIn("8 prompts were skipped", third.err)
            self.assertEqual(len(out.read_text().splitlines()), len(lines))


class Interrupts(Case):
    def test_an_interrupt_ends_the_run(self):
        for arguments in (("generate", NANO, "--json"), ("generate", NANO)):
            process = subprocess.Popen([common.BINARY, *arguments, "--context", "200000", "--ignore-eos"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
            if "--json" in arguments:
                process.stdin.write(jsonl({"id": 1, "prompt": "a", "sampling_params": {"max_tokens": 1}}, {"id": 2, "prompt": "b", "sampling_params": {"ignore_eos": True}}).encode())
                process.stdin.flush()
                self.assertTrue(process.stdout.readline())
            else:
                process.stdin.write(b"hello")
                process.stdin.close()
                self.assertTrue(process.stdout.read(1))
            process.send_signal(signal.SIGINT)
            out, err = (process.stdout.read(), process.stderr.read())
            self.assertEqual(process.wait(60), 130, err)
            for stream in (process.stdin, process.stdout, process.stderr):
                stream.close()


def patch_tensor(folder, name, pattern):
    """Overwrites a tensor of a copied checkpoint with a repeated byte pattern."""
    for shard in pathlib.Path(folder).glob("*.safetensors"):
        data = bytearray(shard.read_bytes())
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + size])
        if name in header:
            start, end = (8 + size + o for o in header[name]["data_offsets"])
            data[start:end] = (pattern * (end - start))[: end - start]
            shard.write_bytes(data)
            return
    raise KeyError(name)


class Damaged(Case):
    def test_weights_that_overflow_give_a_numeric_error(self):
        with tempfile.TemporaryDirectory() as folder:
            model = shutil.copytree(NANO, folder + "/m")
            patch_tensor(model, "norm.weight", struct.pack("<H", 0x7F00))  # 1.7e38 in bf16
            patch_tensor(model, "head.weight", struct.pack("<H", 0x7F00))
            result = run("generate", model, "--json", stdin=jsonl({"id": 1, "prompt": "a"}, {"id": 2, "prompt": "b"}))
            self.assertEqual(result.code, 1)
            self.assertEqual([l["error"]["code"] for l in result.lines()], ["numeric", "numeric"])
            self.failed("score", model, "--prompt", "a", says="NaN or infinity")

    def test_weights_that_are_no_numbers_are_not_loaded(self):
        with tempfile.TemporaryDirectory() as folder:
            model = shutil.copytree(NANO, folder + "/m")
            patch_tensor(model, "norm.weight", b"\xff\xff")
            self.failed("generate", model, "--prompt", "a", says="norm.weight")

    def test_a_truncated_shard(self):
        with tempfile.TemporaryDirectory() as folder:
            model = shutil.copytree(NANO, folder + "/m")
            shard = sorted(pathlib.Path(model).glob("*.safetensors"))[1]
            shard.write_bytes(shard.read_bytes()[:-100])
            self.failed("generate", model, "--prompt", "a", says=shard.name)


if __name__ == "__main__":
    common.main()
