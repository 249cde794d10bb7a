#!/usr/bin/env python3
"""Help, version, exit codes, options and where they come from."""
import os
import pathlib
import resource
import shutil
import subprocess
import tempfile
import time

import common
from common import Case, NANO, TINY, environment, run

COMMANDS = ("chat", "generate", "serve", "score", "tokenize", "inspect", "verify", "cache", "grammar", "bench")


class Help(Case):
    def test_every_command_fits_one_screen_and_shows_an_example(self):
        for command in COMMANDS:
            for arguments in ((command, "--help"), ("--help", command), ("help", command)):
                result = self.ok(*arguments)
                lines = result.text.rstrip("\n").split("\n")
                self.assertLessEqual(len(lines), 24, arguments)
                self.assertLessEqual(max(len(line) for line in lines), 80, arguments)
                self.assertIn("example:", result.text)
                self.assertIn("deepinfer " + command, result.text.split("example:")[1])
                self.assertEqual(result.err, "")

    def test_main_help_names_all_commands_and_no_others(self):
        result = self.ok("--help")
        for command in COMMANDS:
            self.assertIn("  " + command, result.text)
        for later in ("eval", "report"):
            self.assertNotIn("  " + later + " ", result.text)
        self.assertLessEqual(max(len(line) for line in result.text.split("\n")), 80)
        self.assertEqual(self.ok("help").out, result.out)

    def test_topics(self):
        for topic in ("common", "sampling", "limits", "http", "json", "environment", "exit-codes"):
            text = self.ok("help", topic).text
            self.assertGreater(len(text), 50)
            self.assertLessEqual(max(len(line) for line in text.split("\n")), 80, topic)
        self.usage("help", "nothing", says="nothing")
        self.assertTrue(self.ok("help", "configuration-markdown").text.startswith("# Configuration"))

    def test_version(self):
        text = self.ok("--version").text
        self.assertRegex(text, r"^deepinfer \d+\.\d+\.\d+\ncompiler (gcc|clang) .*\nisa (scalar|avx2|avx512)\nprofile exact\n")
        self.assertIn("isa scalar", self.ok("--version", "--cpu-isa", "scalar").text)


class Usage(Case):
    def test_unknown_commands(self):
        self.usage(says="which command?")
        for name in ("eval", "report"):
            result = self.usage(name, says="there is no command")
            self.assertIn(", ".join(COMMANDS), result.err)
        self.usage("generat", says='did you mean "generate"')

    def test_unknown_options_name_the_nearest(self):
        self.usage("generate", "--thread", "2", says="did you mean --threads?")
        self.usage("generate", "--temprature=0", says="did you mean --temperature?")
        self.usage("generate", "--zzzzzzzz", says="no option --zzzzzzzz")
        self.usage("generate", "-t", says="-t")
        self.usage("generate", "--logits", "x.npy", says="generate does not take --logits")
        self.usage("score", "--temperature", "0", says="score does not take --temperature")

    def test_values_out_of_range(self):
        self.usage("generate", "--threads", says="--threads needs a value")
        self.usage("generate", "--threads", "many", says="threads")
        self.usage("generate", "--threads=-1", says="threads")
        self.usage("generate", "--top-p", "2", says="top-p")
        self.usage("generate", "--seed", "18446744073709551616", says="seed")
        self.usage("generate", "--cpu-isa", "sse", says="scalar")
        self.usage("chat", "--effort", "200", says="effort")
        self.usage("generate", TINY, "--context", "16385", "--prompt", "x", says="16384")

    def test_options_that_contradict_each_other_or_mean_nothing(self):
        for command in ("generate", "score", "tokenize"):
            self.usage(command, "--prompt", "a", "--token-ids", "1", says="exclude each other")
            self.usage(command, "--json", "--prompt", "a", "--input", "/dev/null", says="exclude each other")
        self.usage("chat", "--prompt", "a", "--input", "/dev/null", says="exclude each other")
        self.usage("chat", "--json", says="generate")
        self.usage("chat", "--token-ids", "1", says="generate")
        self.usage("generate", "--prompt", "a", "--logprobs", "3", says="--json")

    def test_an_input_that_is_none(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "empty")
            file.write_bytes(b"")
            for command in ("generate", "score", "tokenize"):
                for more in ((), ("--json",)):
                    self.failed(command, NANO, "--input", folder, *more, says=folder + " is a folder")
                    self.usage(command, NANO, "--input", "", *more, says="option input is empty")
                lines = self.ok(command, NANO, "--input", file, "--json")
                self.assertEqual(lines.text, "")
                self.assertIn("%s holds no line" % file, lines.err)
            for command in ("generate", "score"):
                self.failed(command, NANO, "--input", file, says="%s is empty" % file)
                self.failed(command, NANO, says="standard input is empty")
            self.assertEqual(self.ok("tokenize", NANO, "--input", file).text, "\n")

    def test_an_empty_value_that_would_be_another_thing(self):
        for command, names in (("generate", ("model", "output", "draft-calibration")), ("chat", ("session-dir",)), ("score", ("logits",)),
                               ("grammar", ("json-schema", "ebnf")), ("bench", ("url", "ca-file", "calibrate"))):
            for name in names:
                self.usage(command, f"--{name}=", says=f"option {name} is empty; leave it out")
                variable = "DEEPINFER_" + name.upper().replace("-", "_")
                self.usage(command, env=environment(**{variable: ""}), says=f"{variable}: option {name} is empty")
        self.usage("generate", "", "--prompt", "x", says="a folder of no name")
        self.ok("generate", NANO, "--prompt", "x", "--max-tokens", "1", "--stop-token-ids", "", "--cache-dir", "")

    def test_an_input_that_is_the_output(self):
        """Every result would become input, without end, or take the input's place."""
        text = '{"id": 1, "prompt": "a", "sampling_params": {"max_tokens": 1}}\n{"id": 2'  # a last line that resuming would cut off
        with tempfile.TemporaryDirectory() as folder:
            file, link = pathlib.Path(folder, "file"), pathlib.Path(folder, "link")
            file.write_text(text)
            link.hardlink_to(file)
            for arguments, says in ((("generate", "--json", "--output", link), f"--output {link} is the input"), (("generate", "--output", file), "--output"),
                                    (("score", "--json", "--logits", file), "--logits"), (("score", "--logits", link), "--logits"),
                                    (("bench", "spec", "--calibrate", link), "--calibrate")):
                command, *more = arguments
                word = more[:1] if command == "bench" else []
                self.usage(command, *word, NANO, "--input", file, *more[len(word):], says=says)
                if not word:
                    with file.open("rb") as source:
                        done = subprocess.run([common.BINARY, command, NANO, *map(str, more)], stdin=source, capture_output=True, env=environment(), timeout=60)
                    self.assertEqual(done.returncode, 2, done.stderr)
            for arguments in (("generate", "--json"), ("generate",), ("score",), ("tokenize", "--json"), ("tokenize",), ("chat",), ("grammar", "check", "--json")):
                for source in ((), ("--input", str(file))):
                    word = arguments[:2] if arguments[0] == "grammar" else arguments[:1]
                    with file.open("rb") as stdin, file.open("ab") as stdout:
                        done = subprocess.run([common.BINARY, *word, NANO, *arguments[len(word):], *source], stdin=stdin, stdout=stdout,
                                              stderr=subprocess.PIPE, env=environment(), timeout=60)
                    self.assertEqual(done.returncode, 2, done.stderr)
                    self.assertIn(b"standard output are the same file", done.stderr)
            self.assertEqual(file.read_text(), text)

    def test_a_file_at_its_limit_of_size(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "out")
            limited = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
            for more, says in ((("generate", "--json", "--max-tokens", "20", "--output", file), str(file)), (("generate", "--ignore-eos", "--max-tokens", "200", "--output", file), str(file)),
                               (("score", "--logits", file), str(file))):
                file.unlink(missing_ok=True)
                done = subprocess.run([common.BINARY, more[0], NANO, "--prompt", "Hello", *map(str, more[1:])], stdin=subprocess.DEVNULL, capture_output=True,
                                      env=environment(), preexec_fn=limited, timeout=60)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(f"cannot write {says}: File too large", done.stderr.decode())

    def test_a_pipe_in_the_model_folder(self):
        """It would be waited for without end."""
        for name in ("tokenizer.json", "engram.json", "model.safetensors.index.json"):
            with tempfile.TemporaryDirectory() as folder:
                for other in os.listdir(NANO):
                    if other != name:
                        os.symlink(f"{NANO}/{other}", f"{folder}/{other}")
                os.mkfifo(f"{folder}/{name}")
                result = run("generate", folder, "--prompt", "x", "--max-tokens", "1", "--generation-config", "model", timeout=60)
                self.assertEqual(result.code, 1, name)
                self.assertIn(f"{name} is not a plain file", result.err)

    def test_lists_of_ids(self):
        for given in ("1,,2", ",1", "1,", "1 , , 2", ",", "1,,", ",,"):
            self.failed("generate", NANO, "--max-tokens", "1", "--token-ids", given, says="token-ids: no token id")
            self.failed("tokenize", NANO, "--decode", "--token-ids", given, says="token-ids: no token id")
            self.failed("generate", NANO, "--max-tokens", "1", "--prompt", "a", "--stop-token-ids", given, says="stop-token-ids: no token id")
        a = self.ok("tokenize", NANO, "--token-ids", "300,301,302").out
        for given in ("300, 301 302", "300 ,301,\t302", " 300\n301 302 "):
            self.assertEqual(self.ok("tokenize", NANO, "--token-ids", given).out, a)

    def test_a_prompt_is_never_positional(self):
        self.usage("generate", TINY, "Hello there", says="--prompt")

    def test_features_that_do_not_exist_are_refused_by_name(self):
        for name, value in (("accelerator", "nvidia"), ("accelerator", "ascend")):
            self.usage("generate", "--" + name, value, "--prompt", "x", says=name)
        self.ok("generate", NANO, "--spec", "off", "--prefill", "off", "--accelerator", "cpu", "--load-format", "auto", "--max-tokens", "1", "--prompt", "x")

    def test_a_model_that_is_not_there(self):
        self.failed("generate", "/nonexistent/model", "--prompt", "x", says="/nonexistent/model")
        self.failed("tokenize", "/nonexistent/model", "--prompt", "x", says="/nonexistent/model")
        with tempfile.TemporaryDirectory() as folder:
            self.failed("generate", folder, "--prompt", "x", says="config.json")
            self.failed("chat", folder, "--prompt", "x", says="config.json")


class Sources(Case):
    def test_environment_file_and_flags(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "options")
            file.write_text("# comment\nmax-tokens = 3\ntemperature = 0\n")
            count = lambda r: r.lines()[0]["usage"]["completion_tokens"]
            base = ["generate", NANO, "--json", "--prompt", "Hello", "--ignore-eos"]
            self.assertEqual(count(self.ok(*base, "--config", file)), 3)
            env = environment(DEEPINFER_MAX_TOKENS="4")
            self.assertEqual(count(self.ok(*base, "--config", file, env=env)), 4)
            self.assertEqual(count(self.ok(*base, "--config", file, "--max-tokens", "5", env=env)), 5)
            env = environment(DEEPINFER_CONFIG=str(file))
            self.assertEqual(count(self.ok(*base, env=env)), 3)
            file.write_text("max-token = 3\n")
            self.usage(*base, "--config", file, says="max-tokens")
            self.usage(*base, "--config", file.with_name("none"), says="none")

    def test_environment_faults(self):
        self.usage("generate", "--prompt", "x", env=environment(DEEPINFER_THREDS="2"), says="DEEPINFER_THREDS")
        self.usage("generate", "--prompt", "x", env=environment(DEEPINFER_THREADS="x"), says="threads")

    def test_names_of_the_seed_system(self):
        base = ["generate", NANO, "--max-tokens", "1", "--prompt", "x"]
        self.ok(*base, env=environment(DEEPINFER_ACCELERATOR="cpu", DEEPINFER_BATCH_INVARIANT="1"))
        note = self.ok(*base, env=environment(DEEPINFER_BATCH_INVARIANT="0")).err
        self.assertIn("DEEPINFER_BATCH_INVARIANT", note)
        self.assertIn("ascend", self.usage(*base, env=environment(DEEPINFER_ACCELERATOR="ascend"), says="Ascend").err)
        env = environment(DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE="compact", DEEPINFER_YOCO_PREFILL_KEEP_TOKENS="20")
        line = self.ok(*base, "--json", env=env).lines()[0]
        self.assertIn("exact+compact+20", line["fingerprint"])

    def test_the_model_of_the_environment(self):
        a = self.ok("tokenize", "--prompt", "hello world", env=environment(DEEPINFER_MODEL=NANO))
        b = self.ok("tokenize", NANO, "--prompt", "hello world")
        c = self.ok("tokenize", "--prompt", "hello world")
        self.assertEqual(a.out, b.out)
        self.assertNotEqual(a.out, c.out)
        self.assertEqual(c.out, self.ok("tokenize", TINY, "--prompt", "hello world").out)

    def test_the_embedded_model_is_found_from_the_binary(self):
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder, "a/b/c")
            place.mkdir(parents=True)
            binary = shutil.copy(common.BINARY, place / "deepinfer")
            old, common.BINARY = common.BINARY, str(binary)
            try:
                missing = run("tokenize", "--prompt", "x")
                self.assertIn(missing.code, (0, 1))  # 0: an installed one was found
                if missing.code:
                    self.assertIn("DEEPINFER_MODEL", missing.err)
                (pathlib.Path(folder) / "models/tiny").mkdir(parents=True)
                shutil.copy(TINY + "/tokenizer.json", pathlib.Path(folder) / "models/tiny/tokenizer.json")
                self.ok("tokenize", "--prompt", "x")
            finally:
                common.BINARY = old


class Descriptors(Case):
    def test_output_never_goes_into_a_file_of_the_program(self):
        with tempfile.TemporaryDirectory() as folder:
            command = 'exec "$0" "$@" >&-'
            done = subprocess.run(["sh", "-c", command, common.BINARY, "generate", NANO, "--prompt", "x", "--max-tokens", "3",
                                   "--cache-dir", folder], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment())
            self.assertEqual(done.returncode, 1)
            self.assertIn(b"standard output", done.stderr)
            self.assertEqual(pathlib.Path(folder, "lock").read_bytes(), b"")


class Start(Case):
    def test_a_cold_start_answers_within_a_second(self):
        best = 9.0
        for _ in range(5):
            start = time.monotonic()
            self.ok("generate", "--prompt", "Hello", "--max-tokens", "1", "--temperature", "0")
            best = min(best, time.monotonic() - start)
        sanitized = os.environ.get("ASAN_OPTIONS") or os.environ.get("TSAN_OPTIONS")
        self.assertLess(best, 10 if sanitized else 1)


if __name__ == "__main__":
    common.main()
