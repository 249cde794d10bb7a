#!/usr/bin/env python3
"""The Python package against the program: the same answers, the same refusals, in every form of call."""

# labels: long
import asyncio
import json
import math
import os
import pathlib
import pickle
import struct
import subprocess
import sys
import tempfile
import threading

import common
import python_case
from python_engines import GREEDY, NANO, TINY, Engines

import deepinfer
from deepinfer import LLM, AsyncLLM, SamplingParams, StructuredOutputsParams

# Long runs by hand: 10000 requests for the memory.
REQUESTS = int(os.environ.get("TEST_PYTHON_REQUESTS", "750" if python_case.sanitized() else "1500"))


def single(value):
    """A float of the library as the program prints it: by its 32 bits."""
    return struct.pack("f", value)


def entries(logprobs):
    return [None if e is None else [(i, single(p.logprob), p.rank) for i, p in e.items() if p.rank] for e in logprobs]


class SameAsTheProgram(Engines):
    def program(self, *lines, model=NANO, context=512):
        return self.ok("generate", model, "--json", "--context", context, stdin=common.jsonl(*lines)).lines()

    def same(self, output, line):
        self.assertEqual(output.seed, line["seed"])
        self.assertEqual(output.fingerprint, line["fingerprint"])
        usage = {k: v for k, v in line["usage"].items() if k not in ("cached_tokens", "draft_tokens", "accepted_draft_tokens")}
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
llm = LLM(sys.argv[1])
llm.generate(["a"] * 60, SamplingParams(max_tokens=int(sys.argv[2]), ignore_eos=True))
"""
        quiet = python_case.python(code, NANO, 20)
        self.assertEqual((quiet.returncode, quiet.stdout, quiet.stderr), (0, "", ""))
        for tokens in (200, 2000, 10000):  # what is over at once has no bar
            reader, writer = os.openpty()
            subprocess.run(
                [sys.executable, "-c", code, NANO, str(tokens)],
                env=python_case.environment(),
                stderr=writer,
                check=True,
                timeout=120,
            )
            os.write(writer, b"end")
            shown = os.read(reader, 100000)
            os.close(writer)
            os.close(reader)
            if b"prompts" in shown:
                break
        self.assertIn(b"60/60 prompts", shown)

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


class Equality(common.Case):
    def test_usage_is_equal_whatever_the_drafts(self):
        usage = deepinfer.Usage(5, 2, 7, 1, draft_tokens=6, accepted_draft_tokens=3)
        self.assertEqual(usage, deepinfer.Usage(5, 2, 7, 1))
        self.assertNotEqual(usage, deepinfer.Usage(5, 2, 8, 1, draft_tokens=6, accepted_draft_tokens=3))


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
        with LLM(TINY, max_model_len=2048, spec="off") as slow:
            without = slow.generate("The table is booked for", params, use_tqdm=False)[0]
        self.assertEqual((without.usage.draft_tokens, [a.token_ids for a in without.outputs]), (0, [a.token_ids for a in output.outputs]))


if __name__ == "__main__":
    common.main()
