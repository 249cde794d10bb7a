#!/usr/bin/env python3
"""The Python package over its life: start, interrupts, forks, threads, its end; and on asyncio."""

# labels: long
import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import common
import python_case
from python_engines import GREEDY, NANO

from deepinfer import LLM, AsyncLLM, SamplingParams


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
        end = time.monotonic() + 5
        while threads() > before and time.monotonic() < end:  # a thread that was joined is listed a moment longer
            time.sleep(0.01)
        self.assertLessEqual(threads(), before)
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
            self.assertTrue(last.finished)
            long = SamplingParams(max_tokens=400, ignore_eos=True)
            for _ in range(20):  # who reads slowly gets larger steps
                if steps <= 1:
                    steps = sum([1 async for _ in engine.generate("Hello", long)])
            self.assertGreater(steps, 1)
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
            for _ in range(20):  # a slow reader may find the answer whole
                async for output in engine.generate("Hello", endless, "b"):
                    await engine.abort("b")
                if output.outputs[0].finish_reason == "cancelled":
                    break
            self.assertEqual(output.outputs[0].finish_reason, "cancelled")
            self.assertLess(len(output.outputs[0].token_ids), 500)
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
