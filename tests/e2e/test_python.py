#!/usr/bin/env python3
"""The Python package against the program: the same answers, the same refusals, in every form of call."""

# labels: long
import asyncio
import json
import math
import os
import pathlib
import pickle
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import common
import python_case

python_case.prepare()
import deepinfer  # noqa: E402
from deepinfer import LLM, AsyncLLM, SamplingParams, StructuredOutputsParams  # noqa: E402

NANO, TINY = common.NANO, common.TINY
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logits_hash=True)
# Long runs by hand: 10000 requests for the memory.
REQUESTS = int(os.environ.get("TEST_PYTHON_REQUESTS", "750" if python_case.sanitized() else "1500"))


def single(value):
    """A float of the library as the program prints it: by its 32 bits."""
    return struct.pack("f", value)


def entries(logprobs):
    return [None if e is None else [(i, single(p.logprob), p.rank) for i, p in e.items() if p.rank] for e in logprobs]


class Engines(common.Case):
    """One small engine for all tests of a class."""

    @classmethod
    def setUpClass(cls):
        cls.llm = LLM(NANO, max_model_len=512)

    @classmethod
    def tearDownClass(cls):
        cls.llm.close()

    def refused(self, kind, param, says, call, *arguments, **named):
        with self.assertRaises(kind) as caught:
            call(*arguments, **named)
        self.assertIn(says, str(caught.exception))
        if param is not None:
            self.assertEqual(caught.exception.param, param)


class SameAsTheProgram(Engines):
    def program(self, *lines, model=NANO, context=512):
        return self.ok("generate", model, "--json", "--context", context, stdin=common.jsonl(*lines)).lines()

    def same(self, output, line):
        self.assertEqual(output.seed, line["seed"])
        self.assertEqual(output.fingerprint, line["fingerprint"])
        usage = {k: v for k, v in line["usage"].items() if k != "cached_tokens"}
        self.assertEqual({k: getattr(output.usage, k) for k in usage}, usage)
        self.assertEqual(len(output.outputs), len(line["choices"]))
        for answer, choice in zip(output.outputs, line["choices"]):
            for name in ("index", "text", "token_ids", "finish_reason"):
                self.assertEqual(getattr(answer, name), choice[name])
            self.assertEqual(answer.logits_hash, choice.get("logits_hash"))
            self.assertEqual(answer.reasoning, choice.get("reasoning"))
            if "logprobs" in choice:
                wanted = [[(i, single(p), r + 1) for r, (i, p) in enumerate(e["top"])] for e in choice["logprobs"]]
                self.assertEqual([sorted(e, key=lambda x: x[2]) for e in entries(answer.logprobs)], wanted)
                for entry, e in zip(answer.logprobs, choice["logprobs"]):
                    self.assertEqual(single(entry[e["token_id"]].logprob), single(e["logprob"]))
            if "prompt_logprobs" in choice:
                self.assertEqual(
                    [
                        None if e is None else single(e[i].logprob)
                        for e, i in zip(output.prompt_logprobs, output.prompt_token_ids)
                    ],
                    [None if e is None else single(e["logprob"]) for e in choice["prompt_logprobs"]],
                )

    def test_generate(self):
        cases = [
            {"temperature": 0, "max_tokens": 12, "logits_hash": True, "logprobs": 3, "prompt_logprobs": 2, "seed": 0},
            {"max_tokens": 20, "seed": 2**64 - 1, "n": 3, "top_p": 0.9, "top_k": 50, "min_p": 0.01, "logprobs": 0},
            {
                "max_tokens": 20,
                "seed": 7,
                "stop": ["e", "xyz"],
                "repetition_penalty": 1.2,
                "presence_penalty": 0.5,
                "frequency_penalty": -0.5,
            },
            {
                "max_tokens": 20,
                "seq_seed": 7,
                "stop_token_ids": [5, 6],
                "min_tokens": 3,
                "first_n_token_no_eos": 2,
                "ignore_eos": True,
            },
            {"max_tokens": 6, "seed": 1, "golden_token_ids": [5, -1, 9], "logit_bias": {"17": 100.0, "4": -100.0}},
            {"max_tokens": 0, "seed": 1, "prompt_logprobs": 0},
        ]
        prompts = ["Hello", "", "Grüße 你好 🙂\0x", "<｜User｜>", [1, 2, 3], "a b c"]
        for prompt, case in zip(prompts, cases):
            key = "prompt" if isinstance(prompt, str) else "token_ids"
            line = self.program({key: prompt, "sampling_params": case})[0]
            if "logit_bias" in case:
                case = dict(case, logit_bias={int(k): v for k, v in case["logit_bias"].items()})
            self.same(self.llm.generate([prompt], SamplingParams(**case))[0], line)

    def test_chat(self):
        with LLM(TINY, max_model_len=512) as llm:
            talks = [
                ([{"role": "user", "content": "Hello, who are you?"}], {}),
                (
                    [
                        {"role": "system", "content": "Be brief."},
                        {"role": "user", "content": [{"type": "text", "text": "Book a table"}]},
                    ],
                    {"thinking": True},
                ),
                (
                    [
                        {"role": "user", "content": "<think>"},
                        {"role": "assistant", "content": "No", "reasoning_content": "hm"},
                        {"role": "user", "content": "Why?"},
                    ],
                    {"reasoning_effort": "max"},
                ),
            ]
            params = {"max_tokens": 48, "seed": 3, "logits_hash": True, "stop": ["you"]}
            lines = self.program(*[{"messages": m, "sampling_params": params, **more} for m, more in talks], model=TINY)
            for (messages, more), line in zip(talks, lines):
                self.same(llm.chat(messages, SamplingParams(**params), **more)[0], line)
            both = llm.chat([talks[0][0], talks[0][0]], SamplingParams(**params))
            self.assertEqual([o.outputs[0].text for o in both], [lines[0]["choices"][0]["text"]] * 2)

            open_turn = talks[0][0] + [{"role": "assistant", "content": "I am a"}]
            line = self.program(
                {"messages": open_turn[:1] + [dict(open_turn[1], prefix=True)], "sampling_params": params}, model=TINY
            )[0]
            self.same(llm.chat(open_turn, SamplingParams(**params), continue_final_message=True)[0], line)
            self.assertNotIn("prefix", open_turn[1])

            self.assertEqual(
                "".join(p.text for p in llm.stream(messages=talks[0][0], sampling_params=SamplingParams(**params))),
                lines[0]["choices"][0]["text"],
            )
            pieces = list(llm.stream(messages=talks[1][0], sampling_params=SamplingParams(**params), thinking=True))
            self.assertEqual("".join(p.reasoning for p in pieces), lines[1]["choices"][0]["reasoning"])
            tokenizer = llm.get_tokenizer()
            ids = tokenizer.apply_chat_template(talks[0][0])
            self.assertEqual(
                tokenizer.encode(tokenizer.apply_chat_template(talks[0][0], tokenize=False), False, control=True), ids
            )

    def test_thinking_of_the_engine(self):
        question = [{"role": "user", "content": "Hello"}]
        for thinking in (True, False):
            with LLM(NANO, thinking=thinking, reasoning_effort="max", max_model_len=512) as llm:
                prompt = llm.chat(question, GREEDY)[0].prompt
                self.assertEqual(prompt.endswith("<think>"), thinking)
                self.assertEqual("Reasoning Effort: 100" in prompt, thinking)
                self.assertFalse(llm.chat(question, GREEDY, thinking=False)[0].prompt.endswith("<think>"))

    def test_tools(self):
        tools = [{"type": "function", "function": {"name": "water_plants", "parameters": {"type": "object"}}}]
        question = [{"role": "user", "content": "Hello"}]
        line = self.ok(
            "generate",
            NANO,
            "--json",
            stdin=common.jsonl(
                {
                    "messages": question,
                    "tools": tools,
                    "thinking": False,
                    "sampling_params": {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "logits_hash": True},
                }
            ),
        ).lines()[0]
        with LLM(NANO, max_model_len=2048) as llm:
            output = llm.chat(question, GREEDY, tools=tools, thinking=False)[0]
        self.assertIn("water_plants", output.prompt)
        self.assertEqual(output.outputs[0].logits_hash, line["choices"][0]["logits_hash"])
        self.assertEqual(output.usage.prompt_tokens, line["usage"]["prompt_tokens"])

    def test_score(self):
        for prompt in ("Hello there", [5, 6, 7, 8], [9]):
            key = "prompt" if isinstance(prompt, str) else "token_ids"
            line = self.ok("score", NANO, "--json", stdin=common.jsonl({key: prompt})).lines()[0]
            rows = []
            output = self.llm.score([prompt], on_row=lambda row, logits: rows.append((row, logits.index(max(logits)))))[
                0
            ]
            self.assertEqual(output.argmax, line["argmax"])
            self.assertEqual(rows, list(enumerate(line["argmax"])))
            self.assertEqual(output.logits_hash, line["logits_hash"])
            self.assertEqual(
                [None if p is None else single(p) for p in output.token_logprobs],
                [None if p is None else single(p) for p in line["token_logprobs"]],
            )
            self.assertEqual(output.nll, line["nll"])
            self.assertTrue(
                output.perplexity == line["perplexity"] or math.isnan(output.perplexity) and line["perplexity"] is None
            )

        def stop(row, logits):
            raise KeyError("stop here")

        self.assertRaisesRegex(KeyError, "stop here", self.llm.score, "Hello there", on_row=stop)
        self.refused(ValueError, "token_ids", "704", self.llm.score, prompt_token_ids=[1, 704])

    def test_tokenizer(self):
        tokenizer = self.llm.get_tokenizer()
        for text in ("Hello", "", "Grüße 你好\0🙂 <think>"):
            line = self.ok("tokenize", NANO, "--json", stdin=common.jsonl({"text": text})).lines()[0]
            self.assertEqual(tokenizer.encode(text, add_special_tokens=False), line["token_ids"])
            self.assertEqual(tokenizer.decode(line["token_ids"]), text)
            self.assertEqual(tokenizer.encode(text), self.llm.generate(text, GREEDY)[0].prompt_token_ids)
        self.assertEqual(len(tokenizer.encode("<think>", False, control=True)), 1)
        self.assertEqual(tokenizer.decode(tokenizer.bos_token_id), "<｜begin▁of▁sentence｜>")
        self.assertEqual((len(tokenizer), tokenizer.vocab_size), (704, 704))


class Calls(Engines):
    def texts(self, outputs):
        return [[(a.text, a.token_ids, a.logits_hash) for a in o.outputs] for o in outputs]

    def test_forms_of_prompts(self):
        ids = self.llm.get_tokenizer().encode("Hello")
        wanted = self.texts(self.llm.generate("Hello", GREEDY))
        for call in (
            dict(prompts=["Hello"]),
            dict(prompts={"prompt": "Hello"}),
            dict(prompts=[{"prompt_token_ids": ids}]),
            dict(prompts=ids),
            dict(prompts=[ids]),
            dict(prompt_token_ids=ids),
            dict(prompt_token_ids=[tuple(ids)]),
        ):
            self.assertEqual(self.texts(self.llm.generate(sampling_params=GREEDY, **call)), wanted, call)
        self.assertEqual(self.llm.generate([], GREEDY), [])
        self.assertEqual(self.llm.generate("Hello", GREEDY)[0].prompt, "Hello")
        self.assertIsNone(self.llm.generate(ids, GREEDY)[0].prompt)

    def test_order_and_parameters_of_each(self):
        prompts = [f"{i} " * (1 + i % 9) for i in range(40)]
        params = [SamplingParams(max_tokens=1 + i % 11, seed=i, ignore_eos=True) for i in range(40)]
        outputs = self.llm.generate(prompts, params)
        self.assertEqual([o.prompt for o in outputs], prompts)
        self.assertEqual([len(o.outputs[0].token_ids) for o in outputs], [1 + i % 11 for i in range(40)])
        self.assertEqual(len({o.request_id for o in outputs}), 40)
        alone = [self.llm.generate(p, s)[0] for p, s in zip(prompts[:5], params)]
        self.assertEqual(self.texts(alone), self.texts(outputs[:5]))

    def test_seeds(self):
        params = SamplingParams(max_tokens=12, ignore_eos=True)
        drawn = self.llm.generate(["Hello", "Hello"], params)
        self.assertNotEqual(drawn[0].seed, drawn[1].seed)
        again = self.llm.generate("Hello", SamplingParams(max_tokens=12, ignore_eos=True, seq_seed=drawn[0].seed))
        self.assertEqual(self.texts(again), self.texts(drawn[:1]))
        with LLM(NANO, seed=drawn[1].seed, max_model_len=512) as llm:
            self.assertEqual(self.texts(llm.generate("Hello", params)), self.texts(drawn[1:]))

    def test_stop_reasons(self):
        free = self.llm.generate("Hello", GREEDY)[0].outputs[0]
        self.assertEqual((free.finish_reason, free.stop_reason, free.finished()), ("length", None, True))
        third = free.token_ids[2]
        ended = self.llm.generate("Hello", SamplingParams(temperature=0, max_tokens=8, stop_token_ids=[third]))[
            0
        ].outputs[0]
        self.assertEqual((ended.finish_reason, ended.stop_reason), ("stop", third))
        letter = next(c for c in free.text if c != "\ufffd")
        ended = self.llm.generate("Hello", SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, stop=letter))[
            0
        ].outputs[0]
        self.assertEqual((ended.finish_reason, ended.stop_reason), ("stop", letter))
        ended = self.llm.generate("Hello", SamplingParams(max_tokens=8, golden_token_ids=[5, 1]))[0].outputs[0]
        self.assertEqual((ended.finish_reason, ended.stop_reason, ended.token_ids), ("stop", None, [5, 1]))

        ended = self.llm.generate("Hello", SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, stop=letter, include_stop_str_in_output=True))
        self.assertEqual(ended[0].outputs[0].text, free.text[: free.text.index(letter) + 1])

    def test_one_failure_does_not_end_the_batch_unless_wanted(self):
        prompts = ["Hello", [704], "Hello"]
        self.refused(ValueError, "prompts[1]", "703", self.llm.generate, prompts, GREEDY)
        good, bad, also = self.llm.generate(prompts, GREEDY, on_error="return")
        self.assertEqual(self.texts([good]), self.texts([also]))
        self.assertIsInstance(bad.error, ValueError)
        self.assertEqual(bad.outputs[0].finish_reason, "error")
        late = self.llm.generate(
            "Hello", SamplingParams(max_tokens=400, ignore_eos=True), deadline_ms=1, on_error="return"
        )[0]
        self.assertEqual(late.error.code, "deadline")
        with self.assertRaises(RuntimeError):
            self.llm.generate("Hello", SamplingParams(max_tokens=400, ignore_eos=True), deadline_ms=1)

    def test_stream(self):
        whole = self.llm.generate("Hello", GREEDY)[0]
        stream = self.llm.stream("Hello", GREEDY)
        pieces = list(stream)
        self.assertEqual("".join(p.text for p in pieces), whole.outputs[0].text)
        self.assertEqual(sum((p.token_ids for p in pieces), []), whole.outputs[0].token_ids)
        self.assertEqual([p.finish_reason for p in pieces if p.finish_reason], ["length"])
        self.assertEqual(stream.output.outputs, whole.outputs)
        self.assertEqual(list(stream), [])
        with self.llm.stream("Hello", SamplingParams(max_tokens=400, ignore_eos=True)) as stream:
            next(stream)
        self.assertLess(len(stream.output.outputs[0].token_ids), 400)
        both = self.llm.stream("Hello", SamplingParams(max_tokens=5, n=2, ignore_eos=True))
        self.assertEqual(sorted({p.index for p in both}), [0, 1])

    def test_a_thousand_prompts_and_a_short_queue(self):
        outputs = self.llm.generate(
            [f"Hello {i}" for i in range(1000)], SamplingParams(max_tokens=2, temperature=0, ignore_eos=True)
        )
        self.assertEqual([o.prompt for o in outputs], [f"Hello {i}" for i in range(1000)])
        self.assertTrue(all(len(o.outputs[0].token_ids) == 2 for o in outputs))
        with LLM(NANO, max_model_len=64, max_queue=1, max_num_seqs=2) as llm:
            few = llm.generate(
                [f"Hello {i}" for i in range(20)], SamplingParams(max_tokens=2, temperature=0, ignore_eos=True)
            )
        self.assertEqual(self.texts(few), self.texts(outputs[:20]))

    def test_threads(self):
        wanted = self.texts(self.llm.generate("Hello", GREEDY))
        found, problems = [], []

        def work(number):
            try:
                for _ in range(5):
                    found.append(self.texts(self.llm.generate(["Hello", f"other {number}"], GREEDY)[:1]))
                    self.llm.get_tokenizer().encode("Hello")
                found.append(self.texts([s.output for s in [self.llm.stream("Hello", GREEDY)] if list(s)]))
            except Exception as error:  # a thread's exception would be lost
                problems.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(problems, [])
        self.assertEqual(found, [wanted] * 36)

    def test_a_notebook(self):
        """Cells run in a thread that is not the main one and already has an event loop."""
        seen = []

        async def cell():
            with LLM(NANO, max_model_len=512) as llm:
                seen.append(self.texts(llm.generate("Hello", GREEDY)))
                seen.append(len(llm.score("Hello")[0].argmax))
                seen.append([s.text for s in llm.stream("Hello", GREEDY)] != [])
            async with await AsyncLLM.open(NANO, max_model_len=512) as engine:
                seen.append(self.texts([await engine.complete("Hello", GREEDY)]))

        thread = threading.Thread(target=lambda: asyncio.run(cell()))
        thread.start()
        thread.join()
        wanted = self.texts(self.llm.generate("Hello", GREEDY))
        self.assertEqual(seen[0::3], [wanted, wanted])
        self.assertEqual(len(seen), 4)

    def test_progress(self):
        class Bar:
            def __init__(self, total, desc):
                self.total, self.done, self.closed = total, 0, False
                bars.append(self)

            def update(self, n):
                self.done += n

            def close(self):
                self.closed = True

        bars = []
        self.llm.generate(["Hello"] * 5, GREEDY, use_tqdm=Bar)
        self.assertEqual([(b.total, b.done, b.closed) for b in bars], [(5, 5, True)])
        code = """
import sys
from deepinfer import LLM, SamplingParams
LLM(sys.argv[1]).generate(["a"] * 60, SamplingParams(max_tokens=20, ignore_eos=True))
"""
        quiet = python_case.python(code, NANO)
        self.assertEqual((quiet.returncode, quiet.stdout, quiet.stderr), (0, "", ""))
        reader, writer = os.openpty()
        subprocess.run(
            [sys.executable, "-c", code, NANO], env=python_case.environment(), stderr=writer, check=True, timeout=120
        )
        os.close(writer)
        self.assertIn(b"60/60 prompts", os.read(reader, 100000))
        os.close(reader)

    def test_memory_is_flat(self):
        # One arena, so that the count of the C library is complete. What is resident has steps.
        code = """
import ctypes, gc, sys, time
from deepinfer import LLM, SamplingParams

class Use(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Use

def use():
    time.sleep(0.2)  # the engine lets go of the last requests at its next step
    gc.collect()
    library = libc.mallinfo2()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * 4096
    return sys.getallocatedblocks(), library.uordblks + library.hblkhd, resident

params = SamplingParams(max_tokens=2, logprobs=2, prompt_logprobs=1, stop="xyz", logit_bias={5: 1.0}, ignore_eos=True)
with LLM(sys.argv[1], max_model_len=64, cache_ram=0) as llm:
    for number in range(0, int(sys.argv[2]), 250):
        if number == 500:
            before = use()
        llm.generate([f"{number} {i}" for i in range(250)], params)
    print(*(after - b for after, b in zip(use(), before)))
"""
        done = python_case.python(code, NANO, REQUESTS, MALLOC_ARENA_MAX="1", timeout=3000)
        self.assertEqual(done.stderr, "")
        blocks, held, resident = map(int, done.stdout.split())
        if REQUESTS > 5000:
            print(
                f"{REQUESTS - 500} requests: {blocks} more Python blocks, {held} more bytes allocated, "
                f"{resident} more bytes resident"
            )
        self.assertLess(blocks, 1000)
        self.assertLess(held, 128 * 1024)
        if not python_case.sanitized():
            self.assertLess(resident, 16 << 20)


class States(Engines):
    def test_saved_and_loaded(self):
        prompt = list(range(5, 205))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "state")
            with LLM(NANO, max_model_len=512) as llm:
                cold = llm.generate(prompt_token_ids=prompt, sampling_params=GREEDY)[0]
                self.assertEqual(cold.usage.cached_tokens, 0)
                held = llm.save_state(path, prompt)
                self.assertEqual(held, len(prompt) - 1)
                whole = llm.save_state(str(path) + ".whole", cold.prompt_token_ids + cold.outputs[0].token_ids)
                self.assertGreater(whole, held)
                llm.generate(prompt_token_ids=prompt, sampling_params=GREEDY, tenant="ours")
                self.assertEqual(llm.save_state(path, prompt, tenant="ours"), held)
                self.refused(ValueError, None, "", llm.save_state, path, prompt, tenant="theirs")
            with LLM(NANO, max_model_len=512) as llm:
                self.assertEqual(llm.load_state(path), held)
                warm = llm.generate(prompt_token_ids=prompt, sampling_params=GREEDY)[0]
                self.assertEqual(warm.usage.cached_tokens, held)
                self.assertEqual(warm.outputs[0].logits_hash, cold.outputs[0].logits_hash)
                self.assertEqual(warm.outputs[0].token_ids, cold.outputs[0].token_ids)
                other = llm.generate(prompt_token_ids=prompt, sampling_params=GREEDY, tenant="ours")[0]
                self.assertEqual(other.usage.cached_tokens, 0)
            asyncio.run(self.with_asyncio(path, prompt, held))

    async def with_asyncio(self, path, prompt, held):
        async with await AsyncLLM.open(NANO, max_model_len=512) as engine:
            self.assertEqual(await engine.load_state(path), held)
            self.assertEqual(await engine.save_state(path, prompt), held)

    def test_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "state")
            self.refused(ValueError, None, "cache", self.llm.save_state, path, [600, 601, 602])
            self.refused(ValueError, "prompt", "empty", self.llm.save_state, path, [])
            self.refused(ValueError, None, "nowhere", self.llm.load_state, "/nowhere/state")
            self.refused(ValueError, "path", "empty", self.llm.load_state, "")
            self.refused(TypeError, None, "path", self.llm.load_state, 5)
            self.refused(TypeError, None, "path", self.llm.save_state, b"x", [5])
            self.refused(TypeError, None, "tenant", self.llm.load_state, path, tenant=5)
            prompt = list(range(5, 105))
            self.llm.generate(prompt_token_ids=prompt, sampling_params=GREEDY)
            self.llm.save_state(path, prompt)
            data = bytearray(pathlib.Path(path).read_bytes())
            data[len(data) // 2] ^= 4
            pathlib.Path(path).write_bytes(data)
            with self.assertRaises((ValueError, RuntimeError)) as caught:
                self.llm.load_state(path)
            self.assertIn(path, str(caught.exception))
            with LLM(TINY, max_model_len=512) as other, self.assertRaises((ValueError, RuntimeError)) as caught:
                other.load_state(path)
            self.assertIn(path, str(caught.exception))


class Tiny(common.Case):
    """What the small model of the other tests has no words for."""

    @classmethod
    def setUpClass(cls):
        cls.llm = LLM(TINY, spec=4, max_model_len=2048)

    @classmethod
    def tearDownClass(cls):
        cls.llm.close()

    def test_structured_outputs(self):
        schema = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
                  "required": ["city", "days"], "additionalProperties": False}
        messages = [{"role": "user", "content": "Plan a trip."}]

        def ask(thinking=False, **given):
            params = SamplingParams(temperature=1, seed=3, max_tokens=1200, structured_outputs=StructuredOutputsParams(**given))
            return self.llm.chat(messages, params, chat_template_kwargs={"enable_thinking": thinking}, use_tqdm=False)[0].outputs[0]

        for thinking in (False, True):
            answer = ask(thinking, json=schema)
            self.assertEqual((answer.finish_reason, answer.reasoning is not None), ("stop", thinking))
            value = json.loads(answer.text)
            self.assertIn(value["city"], ("Rome", "Oslo"))
            self.assertIn(value["days"], range(1, 10))
        self.assertEqual(list(json.loads(ask(json=json.dumps(schema)).text)), ["city", "days"])
        self.assertIn(ask(choice=["a.b", "c|d", "(e)"]).text, ("a.b", "c|d", "(e)"))
        self.assertRegex(ask(regex="[a-c]{3}-[0-9]{2}").text, "^[a-c]{3}-[0-9]{2}$")
        self.assertIn(ask(grammar='root ::= "yes" | "no"').text, ("yes", "no"))
        params = SamplingParams(structured_outputs={"choice": ["yes", "no"]})
        self.assertIn(self.llm.generate("Well", params, use_tqdm=False)[0].outputs[0].text, ("yes", "no"))
        for wrong in ({"regex": "(a"}, {"json": {"type": "thing"}}):
            with self.assertRaises(deepinfer.ParameterError) as caught:
                self.llm.generate("Well", SamplingParams(structured_outputs=wrong), use_tqdm=False)
            self.assertEqual(caught.exception.param, "structured_outputs")
            self.assertNotIn("so_args", str(caught.exception))
        with self.assertRaisesRegex(TypeError, "did you mean 'thinking'"):
            self.llm.chat(messages, chat_template_kwargs={"thinkin": True})

    def test_drafts(self):
        params = SamplingParams(temperature=0.6, seed=5, n=2, max_tokens=40, ignore_eos=True, draft_records=True)
        output = self.llm.generate("The table is booked for", params, use_tqdm=False)[0]
        start, drafted, accepted = len(output.prompt_token_ids), 0, 0
        for answer in output.outputs:
            for record in answer.drafts:
                at = record.position - start
                self.assertEqual(record.drafted[: record.accepted], answer.token_ids[at : at + record.accepted])
                self.assertEqual(len(record.confidence), len(record.drafted))
                drafted, accepted = drafted + len(record.drafted), accepted + record.accepted
        self.assertEqual((drafted, accepted), (output.usage.draft_tokens, output.usage.accepted_draft_tokens))
        self.assertGreater(accepted, 3)
        self.assertEqual(pickle.loads(pickle.dumps(output)), output)
        with self.llm.stream("The table is booked for", params) as stream:
            records = [(piece.index, piece.drafts) for piece in stream if piece.drafts]
        for answer in output.outputs:
            self.assertEqual([record for index, record in records if index == answer.index], answer.drafts)
        params.draft_records = False
        plain = self.llm.generate("The table is booked for", params, use_tqdm=False)[0]
        self.assertIsNone(plain.outputs[0].drafts)
        with LLM(TINY, max_model_len=2048) as slow:
            without = slow.generate("The table is booked for", params, use_tqdm=False)[0]
        self.assertEqual((without.usage.draft_tokens, [a.token_ids for a in without.outputs]), (0, [a.token_ids for a in output.outputs]))


class Faults(Engines):
    def test_parameters_of_sampling(self):
        for name, value, kind, says in [
            ("temperature", -1, ValueError, "0 .. 1000000"),
            ("temperature", float("nan"), ValueError, "nan"),
            ("temperature", "1", TypeError, "number"),
            ("temperature", True, TypeError, "number"),
            ("top_p", 0, ValueError, "above 0"),
            ("top_p", 1.1, ValueError, "1.1"),
            ("top_k", -2, ValueError, "-1"),
            ("top_k", 1.5, TypeError, "integer"),
            ("min_p", 2, ValueError, "0 .. 1"),
            ("n", 0, ValueError, "1 .. 4096"),
            ("n", True, TypeError, "integer"),
            ("max_tokens", -1, ValueError, "not -1"),
            ("min_tokens", 2**31, ValueError, "2147483648"),
            ("stop", 5, TypeError, "str"),
            ("stop", ["a", 5], TypeError, "stop[1]"),
            ("stop", [""], ValueError, "stop[0]"),
            ("stop", "a\0", ValueError, "zero"),
            ("stop_token_ids", "abc", TypeError, "sequence"),
            ("stop_token_ids", [1, "a"], TypeError, "stop_token_ids[1]"),
            ("stop_token_ids", [-1], ValueError, "stop_token_ids[0]"),
            ("stop_token_ids", [2**40], ValueError, "32 bits"),
            ("ignore_eos", 1, TypeError, "True or False"),
            ("seq_seed", -1, ValueError, "18446744073709551615"),
            ("seed", 2**64, ValueError, "seed"),
            ("logprobs", 1001, ValueError, "1000"),
            ("prompt_logprobs", -1, ValueError, "0 .. 1000"),
            ("repetition_penalty", 0, ValueError, "above 0"),
            ("presence_penalty", 3, ValueError, "-2 .. 2"),
            ("frequency_penalty", "x", TypeError, "number"),
            ("logit_bias", [1], TypeError, "mapping"),
            ("logit_bias", {"1": 1}, TypeError, "integer"),
            ("logit_bias", {1: 1000}, ValueError, "-100 .. 100"),
            ("golden_token_ids", [-2], ValueError, "golden_token_ids[0]"),
            ("first_n_token_no_eos", -1, ValueError, "0"),
            ("so_args", "json", TypeError, "mapping"),
            ("so_args", {"schema_typ": "json"}, TypeError, "schema_type"),
            ("so_args", {"schema_type": "xml", "schema": ""}, ValueError, "ebnf"),
            ("logits_hash", None, TypeError, "True or False"),
            ("include_stop_str_in_output", 1, TypeError, "True or False"),
            ("draft_records", "yes", TypeError, "True or False"),
            ("structured_outputs", "json", TypeError, "mapping"),
            ("structured_outputs", {"jsn": {}}, TypeError, "did you mean 'json'"),
            ("structured_outputs", {}, ValueError, "it has none"),
            ("structured_outputs", {"json": {}, "regex": "a"}, ValueError, "json and regex"),
            ("structured_outputs", {"choice": "ab"}, TypeError, "sequence of str"),
            ("structured_outputs", {"choice": ["a", ""]}, ValueError, "no text of it"),
            ("structured_outputs", {"regex": 5}, TypeError, "str"),
        ]:
            with self.subTest(name=name, value=value):
                self.refused(kind, None, says, SamplingParams, **{name: value})
                with self.assertRaisesRegex(kind, name):
                    SamplingParams(**{name: value})
        self.refused(TypeError, None, "did you mean 'temperature'", SamplingParams, temprature=1)
        self.assertEqual(SamplingParams(best_of=1, skip_special_tokens=True, bad_words=[], logits_processors=None, detokenize=True), SamplingParams())
        for name, value in (("best_of", 2), ("best_of", True), ("skip_special_tokens", False), ("bad_words", ["a"]), ("guided_decoding", {}), ("allowed_token_ids", [1])):
            self.refused(TypeError, None, name + " can only be", SamplingParams, **{name: value})
        self.refused(ValueError, "seed", "the same", SamplingParams, seed=1, seq_seed=2)
        both = {"structured_outputs": {"json_object": True}, "so_args": {"schema_type": "json_object"}}
        self.refused(ValueError, "structured_outputs", "exclude", SamplingParams, **both)
        self.refused(TypeError, None, "did you mean 'regex'", StructuredOutputsParams, regx="a")
        self.refused(ValueError, "min_tokens", "max_tokens", SamplingParams, min_tokens=2, max_tokens=1)
        changed = SamplingParams()
        changed.top_p = 7
        self.refused(ValueError, "top_p", "top_p", self.llm.generate, "a", changed)

    def test_parameters_of_requests(self):
        generate, chat = self.llm.generate, self.llm.chat
        for kind, param, says, call, arguments in [
            (TypeError, None, "one of prompts", generate, ()),
            (TypeError, None, "prompts", generate, (5,)),
            (TypeError, None, "prompts[1]", generate, (["a", None],)),
            (TypeError, None, "prompts[0]", generate, ([b"a"],)),
            (TypeError, None, "prompt_token_ids", generate, ({"prompt_tokn_ids": [1]},)),
            (ValueError, "prompts", "one of", generate, ({},)),
            (ValueError, "prompts[0]", "empty", generate, ([[]],)),
            (TypeError, None, "sampling_params", generate, ("a", {"n": 1})),
            (ValueError, "sampling_params", "2 values for 1", generate, ("a", [GREEDY, GREEDY])),
            (ValueError, "prompts", "surrogate", generate, ("a\ud800",)),
            (ValueError, "prompts", "513", generate, ([5] * 513,)),
            (ValueError, "prompts", "no room", generate, ([5] * 512,)),
            (ValueError, "n", "max_num_seqs", generate, ("a", SamplingParams(n=65))),
            (ValueError, "stop", "16", generate, ("a", SamplingParams(stop=["a"] * 17))),
            (ValueError, "stop_token_ids", "704", generate, ("a", SamplingParams(stop_token_ids=[704]))),
            (
                ValueError,
                "so_args.schema",
                "refused",
                generate,
                ("a", SamplingParams(so_args={"schema_type": "json", "schema": {"type": "strin"}})),
            ),
            (TypeError, None, "messages", chat, ("Hello",)),
            (TypeError, None, "messages[0]", chat, ([5],)),
            (ValueError, "messages", "Empty input messages", chat, ([],)),
            (ValueError, "messages[0].role", "wizard", chat, ([{"role": "wizard"}],)),
            (
                ValueError,
                "messages[1].content",
                "content",
                chat,
                ([{"role": "user", "content": "a"}, {"role": "user", "content": 5}],),
            ),
            (TypeError, None, "not JSON serializable", chat, ([{"role": "user", "content": b"a"}],)),
            (ValueError, "messages", "JSON", chat, ([{"role": "user", "content": float("nan")}],)),
            (ValueError, "messages", "surrogate", chat, ([{"role": "user", "content": "\udc00"}],)),
        ]:
            with self.subTest(says=says, arguments=arguments):
                self.refused(kind, param, says, call, *arguments)
        hello = [{"role": "user", "content": "Hello"}]
        self.refused(ValueError, "tools[0].function", "absent", chat, hello, tools=[{"type": "function"}])
        self.refused(TypeError, None, "JSON", chat, hello, tools=[b"x"])
        self.refused(ValueError, "reasoning_effort", "enormous", chat, hello, reasoning_effort="enormous")
        self.refused(ValueError, "messages[0].role", "messages[1]: ", chat, [hello, [{"role": "x"}]])
        self.refused(ValueError, "continue_final_message", "assistant", chat, hello, continue_final_message=True)
        self.refused(ValueError, "on_error", "ignore", generate, "a", on_error="ignore")
        self.refused(ValueError, "deadline_ms", "-1", generate, "a", deadline_ms=-1)
        self.refused(TypeError, None, "priority", generate, "a", priority="high")
        self.refused(TypeError, None, "prompt and messages", self.llm.stream, "a", messages=hello)
        self.refused(TypeError, None, "messages only", self.llm.stream, "a", thinking=True)
        self.assertEqual(len(generate("a", GREEDY)), 1)

    def test_parameters_of_the_engine(self):
        for kind, param, says, named in [
            (TypeError, None, "did you mean 'max_num_seqs'", {"max_num_seq": 3}),
            (TypeError, None, "did you mean 'cpu_isa'", {"cpu_is": 3}),
            (TypeError, None, "SamplingParams", {"top_k": 3}),
            (TypeError, None, "LLM", {"output": "x"}),
            (TypeError, None, "LLM", {"quiet": True}),
            (TypeError, None, "max_num_seqs", {"max_num_seqs": "8"}),
            (ValueError, "max_num_seqs", "4096", {"max_num_seqs": 0}),
            (ValueError, "max_model_len", "1048576", {"max_model_len": 1 << 30}),
            (ValueError, "cpu_isa", "avx2", {"cpu_isa": "mmx"}),
            (ValueError, "load_format", "dummy", {"load_format": "gguf"}),
            (TypeError, None, "chunk", {"chunk": [1]}),
            (ValueError, "model", "No such file", {"model": "/nowhere"}),
            (TypeError, None, "model", {"model": 5}),
            (ValueError, "spec", "off", {"spec": "9"}),
            (ValueError, "seed", "seed", {"seed": -1}),
            (TypeError, None, "tensor_parallel_size can only be 1", {"tensor_parallel_size": 2}),
            (TypeError, None, "dtype can only be 'auto'", {"dtype": "float16"}),
            (TypeError, None, "quantization can only be None", {"quantization": "awq"}),
            (TypeError, None, "method can only be", {"speculative_config": {"method": "eagle", "num_speculative_tokens": 2}}),
            (TypeError, None, "num_speculative_tokens", {"speculative_config": {}}),
            (ValueError, "spec", "off", {"speculative_config": {"num_speculative_tokens": 9}}),
        ]:
            with self.subTest(named=named):
                self.refused(kind, param, says, LLM, **{"model": NANO, **named})
        LLM(NANO, tensor_parallel_size=1, dtype="auto", trust_remote_code=True, quantization=None, speculative_config=None, max_model_len=64).close()
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaises((ValueError, RuntimeError)) as caught:
                LLM(folder)
            self.assertIn("config.json", str(caught.exception))
        self.assertRaisesRegex(TypeError, "pickled", pickle.dumps, self.llm)

    def test_environment(self):
        code = """
from deepinfer import LLM, SamplingParams
llm = LLM()
print(llm.max_model_len, llm.generate("a", SamplingParams(max_tokens=1))[0].seed, llm.info.path)
"""
        done = python_case.python(code, DEEPINFER_CONTEXT="77", DEEPINFER_SEED="5", DEEPINFER_MODEL=NANO)
        self.assertEqual(done.stdout.split(), ["77", "5", NANO], done.stderr)
        done = python_case.python(code, DEEPINFER_CONTEXT="77")
        self.assertEqual(done.stdout.split()[-1], TINY, done.stderr)
        done = python_case.python(code, DEEPINFER_CONTEXTS="77")
        self.assertIn("DEEPINFER_CONTEXTS", done.stderr)

    def test_a_file_of_options(self):
        question = [{"role": "user", "content": "Hello"}]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "options")
            pathlib.Path(path).write_text(
                f"model = {NANO}\nseed = 11\nthinking = on\neffort = max\ncontext = 500\nmax-seqs = 3\n"
            )
            with LLM(config=path) as llm:
                self.assertEqual((llm.info.path, llm.max_model_len), (NANO, 500))
                self.assertEqual(llm.generate("Hello", SamplingParams(max_tokens=1))[0].seed, 11)
                self.assertEqual(llm.generate("Hello", SamplingParams(max_tokens=1, seed=12))[0].seed, 12)
                prompt = llm.chat(question, GREEDY)[0].prompt
                self.assertTrue(prompt.endswith("<think>") and "Reasoning Effort: 100" in prompt)
            # A parameter is stronger than a variable, and a variable stronger than the file.
            code = """
import sys
from deepinfer import LLM, SamplingParams
llm = LLM(config=sys.argv[1], **eval(sys.argv[2]))
talk = llm.chat([{"role": "user", "content": "Hello"}], SamplingParams(max_tokens=1))[0]
print(talk.seed, talk.prompt.endswith("<think>"))
"""
            done = python_case.python(code, path, "{}", DEEPINFER_SEED="21", DEEPINFER_THINKING="off")
            self.assertEqual(done.stdout.split(), ["21", "False"], done.stderr)
            done = python_case.python(code, path, "{'seed': 31}", DEEPINFER_SEED="21")
            self.assertEqual(done.stdout.split(), ["31", "True"], done.stderr)
            pathlib.Path(path).write_text("generation-config = model\n")
            model = os.path.join(folder, "model")
            shutil.copytree(NANO, model, ignore=shutil.ignore_patterns("golden"))
            pathlib.Path(model, "generation_config.json").write_text('{"temperature": 0.25, "top_p": 0.5}')
            with LLM(model, config=path) as llm:
                params = llm.get_default_sampling_params()
                self.assertEqual((params.temperature, params.top_p), (0.25, 0.5))
            pathlib.Path(path).write_text("sede = 1\n")
            self.refused(ValueError, None, "did you mean", LLM, NANO, config=path)

    def test_a_model_without_a_tokenizer(self):
        with tempfile.TemporaryDirectory() as folder:
            with (
                open(os.path.join(NANO, "config.json")) as source,
                open(os.path.join(folder, "config.json"), "w") as copy,
            ):
                copy.write(source.read())
            with LLM(folder, load_format="dummy", max_model_len=64) as llm:
                output = llm.generate([[5, 6]], SamplingParams(max_tokens=4, logprobs=1, ignore_eos=True))[0]
                self.assertEqual((len(output.outputs[0].token_ids), output.outputs[0].text), (4, ""))
                self.refused(ValueError, "prompts", "tokenizer", llm.generate, "Hello")
                self.refused(ValueError, "messages", "tokenizer", llm.chat, [{"role": "user", "content": "a"}])
                self.refused(ValueError, "tokenizer", "tokenizer", llm.get_tokenizer().encode, "a")


class Data(common.Case):
    def test_pickling(self):
        params = SamplingParams(n=2, stop=["a"], logit_bias={1: 2.0}, seed=5, logprobs=1, max_tokens=3, ignore_eos=True)
        self.assertEqual(pickle.loads(pickle.dumps(params)), params)
        self.assertEqual(params.clone(), params)
        self.assertIsNot(params.clone().stop, params.stop)
        self.assertEqual(
            repr(params),
            "SamplingParams(n=2, max_tokens=3, stop=['a'], ignore_eos=True, seed=5, logprobs=1, logit_bias={1: 2.0})",
        )
        with LLM(NANO, max_model_len=64) as llm:
            output = llm.generate("Hello", params)[0]
            refused = llm.generate([[704]], params, on_error="return")[0]
            score = llm.score("Hello")[0]
        for value in (output, score, refused.outputs):
            self.assertEqual(pickle.loads(pickle.dumps(value)), value)
        error = pickle.loads(pickle.dumps(refused)).error
        self.assertEqual((str(error), error.param, error.code), (str(refused.error), "prompts[0]", "invalid_argument"))
        # Outputs are read where no library is.
        code = "import pickle,sys; print(pickle.load(open(sys.argv[1], 'rb')).outputs[0].text)"
        with tempfile.NamedTemporaryFile() as file:
            pickle.dump(output, file)
            file.flush()
            done = python_case.python(code, file.name, PYTHONIOENCODING="utf-8", LIBDEEPINFER="/nowhere")
        self.assertEqual(done.stdout, output.outputs[0].text + "\n", done.stderr)


class Life(common.Case):
    def test_closing(self):
        llm = LLM(NANO, max_model_len=64)
        stream = llm.stream("Hello", SamplingParams(max_tokens=40, ignore_eos=True))
        next(stream)
        llm.close()
        llm.close()
        for call in (
            lambda: llm.generate("a"),
            lambda: list(stream),
            lambda: llm.score("a"),
            lambda: llm.get_tokenizer().encode("a"),
            lambda: llm.stream("a"),
            lambda: llm.chat([{"role": "user", "content": "a"}]),
        ):
            self.assertRaisesRegex(RuntimeError, "closed", call)
        self.assertIn("closed", repr(llm))
        self.assertEqual(llm.info.vocabulary, 704)

    def test_closing_ends_what_runs_elsewhere(self):
        llm = LLM(NANO)
        caught = []

        def work(call):
            try:
                call()
            except RuntimeError as error:
                caught.append(error.code)

        calls = [
            lambda: llm.generate(["Hello"] * 3, SamplingParams(max_tokens=100000, ignore_eos=True)),
            lambda: llm.score(prompt_token_ids=[5] * 3000),
        ]
        threads = [threading.Thread(target=work, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        llm.close()
        for thread in threads:
            thread.join(20)
        self.assertEqual(caught, ["cancelled", "cancelled"])

    def test_fork(self):
        code = """
import os, sys, deepinfer
from deepinfer import LLM, SamplingParams
params = SamplingParams(max_tokens=4, temperature=0)
llm = LLM(sys.argv[1], max_model_len=64)
want = llm.generate("Hello", params)[0].outputs[0].token_ids
stream = llm.stream("Hello", params)
next(stream)
child = os.fork()
if child == 0:
    code = 1
    try:
        llm.generate("Hello", params)
    except RuntimeError as error:
        code = 2 if "fork" in str(error) else 3
    try:
        next(stream)
        code = 4
    except RuntimeError:
        pass
    stream.close()
    llm.close()
    del llm, stream
    with LLM(sys.argv[1], max_model_len=64) as own:
        code += 10 * (own.generate("Hello", params)[0].outputs[0].token_ids == want)
    sys.exit(code)
status = os.waitpid(child, 0)[1]
print(os.WEXITSTATUS(status), llm.generate("Hello", params)[0].outputs[0].token_ids == want, len(list(stream)) > 0)
"""
        done = python_case.python(code, NANO)
        self.assertEqual(done.stdout, "12 True True\n", done.stderr)

    def test_control_c(self):
        code = """
import sys
from deepinfer import LLM, SamplingParams
long = SamplingParams(max_tokens=100000, ignore_eos=True)
with LLM(sys.argv[1]) as llm:
    for call in (lambda: llm.generate(["Hello"] * 100, long), lambda: list(llm.stream("Hello", long)),
                 lambda: llm.score(prompt_token_ids=[5] * 20000)):
        print("go", flush=True)
        try:
            call()
            print("done", flush=True)
        except KeyboardInterrupt:
            short = llm.generate("Hello", SamplingParams(max_tokens=3, ignore_eos=True))
            print("interrupted", len(short[0].outputs[0].token_ids), flush=True)
"""
        process = subprocess.Popen(
            [sys.executable, "-c", code, NANO],
            env=python_case.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3):
            self.assertEqual(process.stdout.readline(), "go\n")
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            start = time.monotonic()
            self.assertEqual(process.stdout.readline(), "interrupted 3\n")
            self.assertLess(time.monotonic() - start, 5)
        self.assertEqual(process.communicate(timeout=60)[1], "")
        self.assertEqual(process.returncode, 0)

    def test_an_engine_nobody_holds_is_given_back(self):
        def threads():
            return len(os.listdir("/proc/self/task"))

        before = threads()
        for _ in range(3):
            LLM(NANO, max_model_len=64, threads=2).generate("Hello", GREEDY)
        self.assertEqual(threads(), before)
        done = python_case.python(
            "import deepinfer,sys; llm = deepinfer.LLM(sys.argv[1]); s = llm.stream('a'); next(s)", NANO
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))


class Asyncio(common.Case):
    def run_async(self, work):
        async def main():
            async with await AsyncLLM.open(NANO, max_model_len=512) as engine:
                return await asyncio.wait_for(work(engine), 60)

        return asyncio.run(main())

    def test_every_form_gives_the_same(self):
        async def work(engine):
            whole = engine.llm.generate("Hello", GREEDY)[0].outputs[0]
            last, steps = None, 0
            async for output in engine.generate("Hello", GREEDY, "mine"):
                self.assertEqual(output.request_id, "mine")
                self.assertTrue(whole.text.startswith(output.outputs[0].text))
                last, steps = output, steps + 1
            self.assertTrue(last.finished and steps > 1)
            pieces = [piece async for piece in engine.stream("Hello", GREEDY)]
            crowd = await asyncio.gather(*[engine.complete("Hello", GREEDY) for _ in range(30)])
            for answer in [last.outputs[0], *[o.outputs[0] for o in crowd]]:
                self.assertEqual(answer, whole)
            self.assertEqual("".join(p.text for p in pieces), whole.text)
            messages = [{"role": "user", "content": "Hello"}]
            self.assertEqual(
                (await engine.complete(messages=messages, sampling_params=GREEDY, thinking=True)).outputs,
                engine.llm.chat(messages, GREEDY, thinking=True)[0].outputs,
            )
            self.assertEqual((await engine.score("Hello"))[0], engine.llm.score("Hello")[0])

        self.run_async(work)

    def test_cancelling(self):
        endless = SamplingParams(max_tokens=500, ignore_eos=True)

        async def work(engine):
            task = asyncio.ensure_future(engine.complete("Hello", endless, "a"))
            async for _ in engine.stream("Hello", endless):
                break
            with self.assertRaises(ValueError):
                await engine.complete("Hello", endless, "a")
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            lengths = []
            async for output in engine.generate("Hello", endless, "b"):
                lengths.append(len(output.outputs[0].token_ids))
                if len(lengths) == 2:
                    await engine.abort("b")
            self.assertEqual(output.outputs[0].finish_reason, "cancelled")
            self.assertLess(lengths[-1], 500)
            await engine.abort("nobody")
            with self.assertRaises(ValueError):
                await engine.complete([704])
            with self.assertRaises(RuntimeError):
                await engine.complete("Hello", endless, deadline_ms=1)
            self.assertEqual(len((await engine.complete("Hello", GREEDY)).outputs[0].token_ids), 8)

        self.run_async(work)

    def test_closing_wakes_those_who_wait(self):
        async def work(engine):
            waiting = [
                asyncio.ensure_future(engine.complete("Hello", SamplingParams(max_tokens=500, ignore_eos=True)))
                for _ in range(3)
            ]
            await asyncio.sleep(0.2)
            await asyncio.get_running_loop().run_in_executor(None, engine.close)
            for done in await asyncio.gather(*waiting, return_exceptions=True):
                self.assertIsInstance(done, RuntimeError)
            with self.assertRaises(RuntimeError):
                await engine.complete("Hello", GREEDY)

        self.run_async(work)

    def test_several_loops(self):
        engine, found, problems = AsyncLLM(NANO, max_model_len=64), [], []

        def work():
            try:
                found.append(asyncio.run(engine.complete("Hello", GREEDY)).outputs[0].token_ids)
            except Exception as error:
                problems.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        engine.close()
        self.assertEqual((len(found), len(set(map(tuple, found))), problems), (4, 1, []))


if __name__ == "__main__":
    common.main()
