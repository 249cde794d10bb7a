#!/usr/bin/env python3
"""Masks of this library beside xgrammar and llguidance: the same schemas, instances, vocabulary and core, in turn.

usage: compare_grammar.py [--every N] [--seconds N] [--without NAME] TOKENIZER.json CASES

CASES is a file of JSON lines {"schema", "tests": [{"data", "valid"}]} (also .xz), or a folder of .json files of that
form, as MaskBench has them (https://github.com/guidance-ai/jsonschemabench). A case is compiled, then the ids of every
instance are walked: mask, its bit, advance; accepted is an instance whose every bit is set and that may end. After
the schemas the same instances are walked in JSON mode. Whoever takes longer than --seconds (60) for a case is started
anew without it. Times are processor time of the thread, less what reading the clock takes. The packages come from PyPI
into build/venvs; xgrammar's own sources are left as they are, but torch, which only its kernels for GPUs need, is an
empty module here. The table goes to standard output as Markdown, progress to standard error.
"""
import argparse
import json
import lzma
import os
import pathlib
import selectors
import signal
import subprocess
import sys
import time
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = ("xgrammar", "llguidance")
PACKAGES = ["xgrammar==0.2.9", "llguidance==1.9.1", "numpy==2.4.6", "apache-tvm-ffi==0.1.15.post2", "pydantic==2.14.4",
            "pydantic-core==2.50.5", "annotated-types==0.8.0", "typing-extensions==4.16.0", "typing-inspection==0.4.5"]
STOP = 1

# ------------------------------------------------------------------------------------------------------- in the workers


def token_bytes(path):
    """The bytes of every id; empty for added tokens."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(b): b for b in printable}
    for b in range(256):
        if b not in printable:
            table[chr(256 + len(table) - len(printable))] = b
    file = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    added = {token["id"] for token in file["added_tokens"]}
    vocabulary = file["model"]["vocab"]
    tokens = [b""] * (max([*vocabulary.values(), *added]) + 1)
    for text, number in vocabulary.items():
        if number not in added:
            tokens[number] = bytes(table[c] for c in text)
    return tokens


def cpu_us():
    return time.thread_time_ns() / 1000


class Nothing:
    def __init__(self, *_, **__):
        pass


class Xgrammar:
    def __init__(self, tokens, _):
        import tvm_ffi  # before the empty module, which it would ask for types
        assert tvm_ffi
        for name in ("torch", "transformers", "triton"):
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__getattr__ = lambda _: Nothing
        import xgrammar
        self.library = xgrammar
        information = xgrammar.TokenizerInfo(tokens, xgrammar.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=[STOP])
        self.compiler = xgrammar.GrammarCompiler(information, max_threads=1, cache_enabled=False)

    def compile(self, schema):
        if schema is None:
            return self.compiler.compile_builtin_json_grammar()
        return self.compiler.compile_json_schema(json.dumps(schema), any_whitespace=True, strict_mode=False)

    def start(self, compiled):
        return self.library.GrammarMatcher(compiled)

    def mask(self, matcher, mask):
        matcher.fill_next_token_bitmask(mask)

    def advance(self, matcher, token):
        return matcher.accept_token(token)

    def memory(self, compiled):
        return compiled.memory_size_bytes


class Llguidance:
    def __init__(self, tokens, path):
        import llguidance
        self.library = llguidance
        # the file itself: bytes that are forced must be spelled in the tokens of this tokenizer
        self.tokenizer = llguidance.LLTokenizer(str(path), n_vocab=len(tokens), eos_token=STOP)

    def compile(self, schema):
        grammar = self.library.LLMatcher.grammar_from_json_schema(json.dumps({"type": "object"} if schema is None else schema))
        matcher = self.library.LLMatcher(self.tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def start(self, compiled):
        return compiled.deep_copy()

    def mask(self, matcher, mask):
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if matcher.is_error():
            raise ValueError(matcher.get_error())

    def advance(self, matcher, token):
        return matcher.consume_token(token)

    def memory(self, compiled):
        return None


def run_case(peer, mask, case, clock):
    result = {"compiled": False, "compile_us": [], "first_us": [], "mask_us": [], "memory": [], "tests": []}
    start = cpu_us()
    try:
        compiled = peer.compile(case["schema"])
        done = cpu_us()
        peer.mask(peer.start(compiled), mask)
    except Exception as error:  # whatever a package raises for a schema it refuses
        result["reason"] = str(error)[:200]
        return result
    result["first_us"].append(cpu_us() - start - 2 * clock)
    result["compile_us"].append(done - start - clock)
    result["compiled"] = True
    for ids in case["ids"]:
        matcher, accepted = peer.start(compiled), True
        try:
            for token in [*ids, STOP]:
                start = cpu_us()
                peer.mask(matcher, mask)
                result["mask_us"].append(max(0, cpu_us() - start - clock))
                accepted = bool(mask[0, token // 32] >> token % 32 & 1)
                if not accepted or token == STOP:
                    break
                if not peer.advance(matcher, token):
                    accepted = False
                    break
        except Exception as error:
            result["reason"], accepted = str(error)[:200], False
        result["tests"].append({"accepted": accepted})
    memory = peer.memory(compiled)
    if memory is not None:
        result["memory"].append(memory)
    return result


def work(name, path):
    tokens = token_bytes(path)
    peer = {"xgrammar": Xgrammar, "llguidance": Llguidance}[name](tokens, path)
    import numpy
    mask = numpy.zeros((1, (len(tokens) + 31) // 32), dtype=numpy.int32)
    start = cpu_us()
    for _ in range(2000):
        cpu_us()
    clock = (cpu_us() - start) / 2000
    print(json.dumps({"rows": len(tokens)}), flush=True)
    for line in sys.stdin:
        print(json.dumps(run_case(peer, mask, json.loads(line), clock)), flush=True)


# ------------------------------------------------------------------------------------------------------------- the driver


class Worker:
    """A process that answers a line with a line; one that dies or takes too long is started again."""

    def __init__(self, command, greets, seconds):
        self.command, self.greets, self.seconds, self.process = command, greets, seconds, None

    def ask(self, case):
        if self.process is None:
            environment = {**os.environ, "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                            encoding="utf-8", env=environment)
            if self.greets and not self.read(300):
                sys.exit(f"{self.command[2:4]} does not start")
        try:
            self.process.stdin.write(json.dumps(case, ensure_ascii=False) + "\n")
            self.process.stdin.flush()
            line = self.read(self.seconds)
        except BrokenPipeError:
            line = ""
        if line:
            return json.loads(line)
        ended = self.process.poll() is not None
        self.close()
        return {"ended": "crash" if ended else "time"}

    def read(self, seconds):
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                return ""
        return self.process.stdout.readline()

    def close(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None


def read_cases(path):
    path = pathlib.Path(path)
    if path.is_dir():
        return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(path.rglob("*.json"))]
    opened = lzma.open if path.suffix == ".xz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


class Score:
    def __init__(self):
        self.times = {"compile_us": [], "first_us": [], "mask_us": [], "memory": []}
        self.counts = dict.fromkeys(("cases", "right", "refused", "crash", "time", "accepts", "rejects", "wrong_accepts", "wrong_rejects",
                                     "accept_files", "reject_files"), 0)

    def add(self, result, valid):
        c = self.counts
        c["cases"] += 1
        if "ended" in result or not result["compiled"]:
            c[result.get("ended", "refused")] += 1
            return
        for key, values in self.times.items():
            values += result[key]
        accepts = sum(t["accepted"] and not v for t, v in zip(result["tests"], valid))
        rejects = sum(v and not t["accepted"] for t, v in zip(result["tests"], valid))
        c["accepts"] += sum(valid)
        c["rejects"] += len(valid) - sum(valid)
        c["wrong_accepts"] += accepts
        c["wrong_rejects"] += rejects
        c["accept_files"] += accepts > 0
        c["reject_files"] += rejects > 0
        c["right"] += accepts == 0 and rejects == 0

    def share(self, key, share, scale=1.0):
        values = sorted(self.times[key])
        return values[min(int(len(values) * share), len(values) - 1)] / scale if values else None

    def mean(self, key, scale=1.0):
        return sum(self.times[key]) / len(self.times[key]) / scale if self.times[key] else None


def shown(*values):
    return " / ".join("-" if v is None else f"{v:.2f}" if v < 10 else f"{v:,.0f}" for v in values)


def table(names, scores):
    def row(title, cell):
        print(f"| {title} | " + " | ".join(cell(scores[name]) for name in names) + " |")
    print("| | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    row("compile, ms: p50 / p99 / max", lambda s: shown(*(s.share("compile_us", p, 1000) for p in (0.5, 0.99, 1))))
    row("compile and first mask, ms: p50 / p99 / max", lambda s: shown(*(s.share("first_us", p, 1000) for p in (0.5, 0.99, 1))))
    row("mask, us: avg / p50 / p99 / max", lambda s: shown(s.mean("mask_us"), *(s.share("mask_us", p) for p in (0.5, 0.99, 1))))
    row("masks", lambda s: f"{len(s.times['mask_us']):,}")
    row("memory of a grammar, kB: p50 / p99", lambda s: shown(*(s.share("memory", p, 1000) for p in (0.5, 0.99))))
    row("schemas / all instances right", lambda s: f"{s.counts['cases']} / {100 * s.counts['right'] / max(1, s.counts['cases']):.1f} %")
    row("refused / crashed / too slow", lambda s: f"{s.counts['refused']} / {s.counts['crash']} / {s.counts['time']}")
    row("invalid instances accepted (schemas)",
        lambda s: f"{s.counts['wrong_accepts']} of {s.counts['rejects']} ({s.counts['accept_files']})")
    row("valid instances rejected (schemas)",
        lambda s: f"{s.counts['wrong_rejects']} of {s.counts['accepts']} ({s.counts['reject_files']})")


def main():
    if sys.argv[1:2] == ["--worker"]:
        work(*sys.argv[2:4])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="only every N-th case")
    parser.add_argument("--seconds", type=float, default=60, help="for one case")
    parser.add_argument("--without", action="append", default=[], choices=PEERS)
    parser.add_argument("--bench", default=ROOT / "build/release/bench/bench_grammar", help="the program bench_grammar")
    parser.add_argument("tokenizer")
    parser.add_argument("cases")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    import common
    python = common.venv(PACKAGES, dependencies=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    workers = {"deepinfer": Worker([options.bench, "--each", options.tokenizer], False, options.seconds)}
    for name in PEERS:
        if name not in options.without:
            workers[name] = Worker([python, __file__, "--worker", name, options.tokenizer], True, options.seconds)
    cases = read_cases(options.cases)[::options.every]
    schemas, mode = ({name: Score() for name in workers} for _ in range(2))
    try:
        walk(workers, cases, schemas, mode)
    except KeyboardInterrupt:  # what is known so far
        pass
    for worker in workers.values():
        worker.close()
    print(f"\n{schemas['deepinfer'].counts['cases']} schemas\n")
    table(list(workers), schemas)
    print("\nJSON mode, the valid instances that are objects; compiled anew for each schema\n")
    table(list(workers), mode)


def walk(workers, cases, schemas, mode):
    for number, case in enumerate(cases):
        valid = [bool(test["valid"]) for test in case["tests"]]
        objects = [test for test in case["tests"] if test["valid"] and isinstance(test["data"], dict)]
        walked, walked_mode = None, None
        for name, worker in workers.items():
            if walked is None:
                walked = worker.ask({"schema": case["schema"], "tests": case["tests"]})
                walked_mode = worker.ask({"json_object": True, "tests": objects})
                if "ended" in walked or "ended" in walked_mode:
                    sys.exit(f"case {number} ended bench_grammar: {walked}")
                results = walked, walked_mode
            else:
                results = [worker.ask({"schema": schema, "ids": [t["ids"] for t in ours["tests"]]})
                           for schema, ours in ((case["schema"], walked), (None, walked_mode))]
            schemas[name].add(results[0], valid)
            mode[name].add(results[1], [True] * len(objects))
        print(f"{number + 1} of {len(cases)}", end="\r", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
