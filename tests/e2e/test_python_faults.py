#!/usr/bin/env python3
"""What the Python package refuses, by name, and the objects it gives and takes."""

# labels: long
import asyncio
import os
import pathlib
import pickle
import shutil
import tempfile
import unittest.mock

import common
import python_case
from python_engines import GREEDY, NANO, TINY, Engines

from deepinfer import LLM, AsyncLLM, ParameterError, SamplingParams, StructuredOutputsParams


class BytesPath:
    def __fspath__(self):
        return os.fsencode(NANO)


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
            ("so_args", {"schema_type": "json_object", "schema": {}}, TypeError, "so_args['schema']"),
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

    def test_zero_characters(self):
        """The library would take what is before one for the whole."""
        for name, value, says in [
            ("stop", ["a", "b\0c"], "stop[1]"),
            ("so_args", {"schema_type": "json", "schema": '{"const": 1}\0 '}, "so_args['schema']"),
            ("so_args", {"schema_type": "json_object", "schema": "\0"}, "so_args['schema']"),
            ("structured_outputs", {"json": '{"const": 1}\0 '}, "structured_outputs.json"),
            ("structured_outputs", {"regex": "a\0b"}, "structured_outputs.regex"),
            ("structured_outputs", {"choice": ["a", "yes\0no"]}, "structured_outputs.choice[1]"),
            ("structured_outputs", {"grammar": 'root ::= "a" # \0 "b"'}, "structured_outputs.grammar"),
        ]:
            with self.subTest(name=name, value=value):
                self.refused(ParameterError, name, says, SamplingParams, **{name: value})
                # Parameters may be changed after they were checked.
                params = SamplingParams(max_tokens=1)
                with unittest.mock.patch.object(SamplingParams, "validate"):
                    if name == "structured_outputs":
                        value = StructuredOutputsParams(**{key: "a" if key != "choice" else ["a"] for key in value})
                        value.json, value.regex, value.choice, value.grammar = None, "a\0b", None, None
                    setattr(params, name, value)
                    self.refused(ParameterError, name, "zero character", self.llm.generate, "a", params)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "state\0")
            for param, call in [
                ("tenant", lambda: self.llm.generate("a", GREEDY, tenant="a\0b")),
                ("tenant", lambda: self.llm.save_state(path[:-1], [5], tenant="a\0b")),
                ("tenant", lambda: self.llm.load_state(path[:-1], tenant="a\0b")),
                ("path", lambda: self.llm.save_state(path, [5])),
                ("path", lambda: self.llm.load_state(pathlib.Path(path))),
                ("model", lambda: LLM(NANO + "\0junk")),
                ("model", lambda: LLM(pathlib.Path(NANO + "\0junk"))),
                ("cache_dir", lambda: LLM(NANO, cache_dir=path)),
                ("config", lambda: LLM(NANO, config=path)),
                ("cpu_isa", lambda: LLM(NANO, cpu_isa="scalar\0avx2")),
                ("request_id", lambda: asyncio.run(self.with_asyncio("mine\0yours"))),
                ("request_id", lambda: asyncio.run(self.with_asyncio("mine\ud800"))),
            ]:
                with self.subTest(param=param), self.assertRaises(ParameterError) as caught:
                    call()
                self.assertEqual(caught.exception.param, param)
            self.assertEqual(os.listdir(folder), [])
        # What has a length in the library keeps them.
        tokenizer, text = self.llm.get_tokenizer(), "a\0b"
        self.assertEqual(tokenizer.decode(tokenizer.encode(text, False)), text)
        self.assertIn(text, self.llm.chat([{"role": "user", "content": text}], GREEDY)[0].prompt)
        self.assertEqual(self.llm.generate(text, GREEDY)[0].prompt_token_ids[1:], tokenizer.encode(text, False))
        messages, tools = [{"role": "user", "content": "a"}], [{"type": "function", "function": {"name": "a\0b"}}]
        self.refused(ParameterError, "tools[0].function.name", "zero", self.llm.chat, messages, GREEDY, tools=tools)

    async def with_asyncio(self, request_id):
        async with AsyncLLM(NANO, max_model_len=64) as engine:
            await engine.complete("a", GREEDY, request_id)

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
            (TypeError, None, "not bytes", {"model": BytesPath()}),
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


if __name__ == "__main__":
    common.main()
