#!/usr/bin/env python3
"""The Python package between two threads, and where a signal handler or Ctrl-C comes at the worst moment. The moment is
made certain: a function of the library is replaced by one that does the other thing in the middle of the call."""

# labels: long
import asyncio
import contextlib
import gc
import signal
import threading
from unittest import mock

import common
import python_case
from python_engines import GREEDY, NANO

from deepinfer import LLM, AsyncLLM, EngineError, SamplingParams, _engine, _library
from deepinfer._requests import Runner

LONG = SamplingParams(max_tokens=400, ignore_eos=True)


def elsewhere(work):
    """Runs work in another thread, to its end."""
    failed = []

    def run():
        try:
            work()
        except BaseException as problem:
            failed.append(problem)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "the other thread hangs"
    if failed:
        raise failed[0]


class Races(common.Case):
    def setUp(self):
        gc.collect()  # what other tests left is not counted here
        self.calls = []
        self.library = _library.load()
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        for name in ("di_request_free", "di_request_cancel", "di_close", "di_free"):
            self.replace(name, lambda real, *given: real(*given))

    def replace(self, name, work):
        """work(real, *arguments) instead of a function of the library; that it returned is in self.calls."""
        real = getattr(self.library, name)

        def call(*given):
            result = work(real, *given)
            if getattr(given[0], "value", given[0]):  # NULL may be freed as often as one likes
                self.calls.append(name)
            return result

        self.stack.enter_context(mock.patch.object(self.library, name, call))

    def replace_once(self, name, between, before=False):
        """One call has something else done before it returns, or before it begins; of the events that is a token."""
        left = [between]

        def work(real, *given):
            if left and before:
                left.pop()()
            result = real(*given)
            if left and (name != "di_request_next" or result and given[2]._obj.kind == _library.EVENT_TOKEN):
                left.pop()()
            return result

        self.replace(name, work)

    def handler(self, work):
        """What a signal does that comes now."""
        before = signal.signal(signal.SIGUSR1, lambda *_: work())
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        return lambda: signal.raise_signal(signal.SIGUSR1)

    def count(self, name):
        return self.calls.count(name)


class Requests(Races):
    def setUp(self):
        super().setUp()
        self.llm = LLM(NANO, max_model_len=512)
        self.addCleanup(self.llm.close)

    def only_cancels(self, close):
        close()
        self.assertEqual((self.count("di_request_cancel"), self.count("di_request_free")), (1, 0))

    def ended(self, stream):
        self.assertEqual(list(stream), [])
        self.assertEqual(self.count("di_request_free"), 1)
        self.assertFalse(stream._running.handle)

    def test_closed_by_another_thread_while_an_event_is_taken(self):
        self.replace_once("di_request_next", lambda: elsewhere(lambda: self.only_cancels(stream.close)))
        stream = self.llm.stream("Hello", LONG)
        self.ended(stream)
        stream.close()
        self.assertEqual(self.count("di_request_free"), 1)

    def test_closed_by_another_thread_while_it_is_submitted(self):
        self.replace_once("di_submit", lambda: elsewhere(stream.close), before=True)
        stream = self.llm.stream("Hello", LONG)
        self.ended(stream)

    def test_cancelled_by_another_thread_while_it_is_submitted(self):
        self.replace_once("di_submit", lambda: elsewhere(stream._running.cancel), before=True)
        stream = self.llm.stream("Hello", LONG)
        with self.assertRaises(EngineError) as caught:
            list(stream)
        self.assertEqual(caught.exception.code, "cancelled")

    def test_closed_by_a_signal_handler(self):
        for name in ("di_request_next", "di_submit"):
            with self.subTest(name):
                self.calls.clear()
                self.replace_once(name, self.handler(lambda: self.only_cancels(stream.close)))
                stream = self.llm.stream("Hello", LONG)
                self.ended(stream)

    def test_read_by_a_signal_handler(self):
        self.replace_once("di_request_next", self.handler(lambda: next(stream)))
        stream = self.llm.stream("Hello", LONG)
        self.assertRaisesRegex(EngineError, "being read", next, stream)
        self.ended(stream)

    def test_two_readers_take_turns(self):
        inside, both, second = [], [], threading.Event()

        def work(real, *given):
            inside.append(threading.get_ident())
            if len(inside) > 1:
                both.append(True)
                second.set()
            second.wait(0.2)  # who waits for its turn does not come
            second.set()
            result = real(*given)
            inside.pop()
            return result

        self.replace("di_request_next", work)
        params = SamplingParams(max_tokens=40, ignore_eos=True, seed=1)
        stream, pieces = self.llm.stream("Hello", params), []
        threads = [threading.Thread(target=lambda: pieces.extend(stream), daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        self.assertEqual(both, [])
        self.assertEqual(sum(len(p.token_ids) for p in pieces), 40)

    def test_the_engine_closed_by_another_thread_while_an_event_is_taken(self):
        self.replace_once("di_request_next", lambda: elsewhere(self.llm.close))
        self.assertRaisesRegex(EngineError, "closed|cancelled", self.llm.generate, "Hello", SamplingParams(logprobs=3))
        self.assertEqual((self.count("di_request_free"), self.count("di_close")), (1, 1))

    def interrupted(self, name, call):
        def interrupt():
            raise KeyboardInterrupt

        self.calls.clear()
        self.replace_once(name, interrupt)
        self.assertRaises(KeyboardInterrupt, call)

    def test_an_interruption_behind_a_call_loses_nothing(self):
        for name in ("di_submit", "di_request_next"):
            stream = self.llm.stream("Hello", LONG)
            self.interrupted(name, lambda: self.llm.generate("Hello", LONG))
            self.assertEqual(self.count("di_request_free"), 1)
            stream = self.llm.stream("Hello", LONG)
            stream._running._next = lambda *given: self.library.di_request_next(*given)
            self.interrupted(name, lambda: next(stream))
            self.ended(stream)
        messages = [{"role": "user", "content": "a"}]
        tokenizer = self.llm.get_tokenizer()
        for name, call in (
            ("di_tokenize", lambda: tokenizer.encode("Hello")),
            ("di_detokenize", lambda: tokenizer.decode([5])),
            ("di_render_chat", lambda: tokenizer.apply_chat_template(messages)),
        ):
            self.interrupted(name, call)
            self.assertEqual(self.calls, ["di_free"])
        self.assertEqual(len(self.llm.generate("Hello", GREEDY)[0].outputs[0].token_ids), 8)


class Closing(Races):
    def setUp(self):
        super().setUp()
        self.llm = LLM(NANO, max_model_len=512)
        self.addCleanup(self.llm.close)

    def test_in_the_middle_of_a_call(self):
        """By a signal handler, for instance: the interrupted call could never end if close() waited for it."""
        engine = self.llm._engine

        def both():
            with engine.use(), engine.use():
                self.llm.close()
                self.assertEqual(self.count("di_close"), 0)
                self.assertTrue(engine.closed)
            self.assertEqual(self.count("di_close"), 1)
            self.llm.close()
            self.assertRaisesRegex(EngineError, "closed", self.llm.generate, "Hello")

        elsewhere(both)
        gc.collect()
        self.assertEqual(self.count("di_close"), 1)

    def test_by_a_signal_handler(self):
        self.replace_once("di_tokenize", self.handler(self.llm.close))
        self.assertRaisesRegex(EngineError, "closed", self.llm.generate, ["Hello", "again"])
        self.assertEqual(self.count("di_close"), 1)

    def test_by_callbacks(self):
        for row in (0, 3):  # the last one too
            llm, rows = LLM(NANO, max_model_len=64), []

            def on_row(number, _):
                rows.append(number)
                if number == row:
                    llm.close()

            self.calls.clear()
            elsewhere(lambda: self.assertRaisesRegex(EngineError, "closed", llm.score, prompt_token_ids=[5] * 4, on_row=on_row))
            self.assertEqual((rows[-1], self.count("di_close")), (row, 1))

        class Bar:
            def __init__(self, **_):
                pass

            def update(self, *_):
                llm.close()

            close = update

        for call in ("generate", "score"):
            llm = LLM(NANO, max_model_len=64)
            self.calls.clear()
            with contextlib.suppress(EngineError):
                elsewhere(lambda: getattr(llm, call)(["Hello"] * 3, use_tqdm=Bar))
            self.assertEqual(self.count("di_close"), 1)

    def test_waits_for_the_calls_of_others(self):
        entered, go_on = threading.Event(), threading.Event()

        def work(real, *given):
            entered.set()
            go_on.wait(30)
            self.assertEqual(self.count("di_close"), 0)
            return real(*given)

        self.replace("di_tokenize", work)
        threads = [threading.Thread(target=self.llm.get_tokenizer().encode, args=("Hello",))]
        threads[0].start()
        entered.wait(30)
        # Each of them is back only when the engine was given back, by whomever.
        threads += [threading.Thread(target=lambda: (self.llm.close(), closed.append(self.count("di_close")))) for _ in range(3)]
        closed = []
        for thread in threads[1:]:
            thread.start()
        while not self.llm._engine.closed:
            pass
        self.assertEqual(closed, [])
        go_on.set()
        for thread in threads:
            thread.join(30)
        self.assertEqual(closed, [1, 1, 1])

    def test_interrupted(self):
        """What close() no longer waits for is done by the last user."""
        def interrupted(*_):
            raise KeyboardInterrupt

        entered, go_on = threading.Event(), threading.Event()
        self.replace("di_tokenize", lambda real, *given: (entered.set(), go_on.wait(30), real(*given))[2])
        thread = threading.Thread(target=self.llm.get_tokenizer().encode, args=("Hello",))
        thread.start()
        entered.wait(30)
        with mock.patch.object(threading.Condition, "wait", interrupted):
            self.assertRaises(KeyboardInterrupt, self.llm.close)
        self.assertEqual(self.count("di_close"), 0)
        go_on.set()
        thread.join(30)
        self.assertEqual(self.count("di_close"), 1)

    def test_opening_that_was_interrupted(self):
        self.llm.close()
        self.calls.clear()
        aside = _engine._aside

        def then_interrupt(*given):
            aside(*given)
            raise KeyboardInterrupt

        with mock.patch.object(_engine, "_aside", then_interrupt):
            self.assertRaises(KeyboardInterrupt, LLM, NANO, max_model_len=64)
        gc.collect()
        self.assertEqual(self.count("di_close"), 1)

        self.calls.clear()
        go_on, closed = threading.Event(), threading.Event()

        def work(real, *given):
            status = real(*given)
            signal.raise_signal(signal.SIGINT)  # Python handles it in the main thread
            go_on.wait(30)
            return status

        self.replace("di_open", work)
        self.replace("di_close", lambda real, *given: (real(*given), closed.set()))
        self.assertRaises(KeyboardInterrupt, LLM, NANO, max_model_len=64)
        gc.collect()
        self.assertEqual(self.count("di_close"), 0)
        go_on.set()
        self.assertTrue(closed.wait(30))


class Asyncio(Races):
    def run_async(self, work):
        async def main():
            async with await AsyncLLM.open(NANO, max_model_len=512) as engine:
                return await asyncio.wait_for(work(engine), 30)

        return asyncio.run(main())

    def test_the_engine_closed_while_an_event_is_taken(self):
        for form in ("complete", "generate", "stream"):

            async def work(engine):
                self.replace_once("di_request_next", lambda: elsewhere(engine.llm.close))
                with self.assertRaisesRegex(EngineError, "closed|cancelled"):
                    params = SamplingParams(max_tokens=400, ignore_eos=True, logprobs=3)
                    if form == "complete":
                        await engine.complete("Hello", params)
                    else:
                        async for _ in getattr(engine, form)("Hello", params):
                            pass

            with self.subTest(form):
                self.calls.clear()
                self.run_async(work)
                self.assertEqual((self.count("di_request_free"), self.count("di_close")), (1, 1))

    def test_a_fault_of_the_thread_reaches_those_who_wait(self):
        async def work(engine):
            with mock.patch.object(Runner, "step", side_effect=ValueError("broken")):
                for result in await asyncio.gather(*[engine.complete("Hello", LONG) for _ in range(3)], return_exceptions=True):
                    self.assertIsInstance(result, (ValueError, EngineError))  # who comes behind its end finds it closed
                with self.assertRaisesRegex(EngineError, "closed"):
                    await engine.complete("Hello", LONG)

        self.run_async(work)

    def test_closed_by_a_signal_handler(self):
        """Wherever it comes in the main thread, nothing that close() waits for waits for the main thread."""
        for name in ("setdefault", "start", "put"):
            engine = AsyncLLM(NANO, max_model_len=64)
            close = self.handler(engine.close)

            async def work():
                if name == "setdefault":
                    with engine._lock:
                        close()
                elif name == "start":
                    before = engine._llm._engine.check
                    engine._llm._engine.check = lambda: (before(), close() if engine._lock._is_owned() else None)
                else:
                    engine._by_id = mock.MagicMock()
                    engine._by_id.setdefault.side_effect = lambda _, watched: (close(), watched)[1]
                with self.assertRaisesRegex(EngineError, "closed"):
                    await asyncio.wait_for(engine.complete("Hello", LONG), 30)

            with self.subTest(name):
                asyncio.run(work())

    def test_put_behind_the_end(self):
        """An order is either obeyed or refused, also when the thread ends between the look and the put."""
        engine = AsyncLLM(NANO, max_model_len=64)

        async def work():
            await engine.complete("Hello", GREEDY)
            carrier = engine._carrier
            elsewhere(engine.close)
            self.assertRaisesRegex(EngineError, "closed", carrier.put, mock.Mock())

        asyncio.run(work())


class Processes(common.Case):
    def test_a_lock_that_was_held_at_the_fork(self):
        code = """
import os, signal, sys, threading
from deepinfer import LLM, SamplingParams
llm = LLM(sys.argv[1], max_model_len=64)
stream = llm.stream("Hello", SamplingParams(max_tokens=40, ignore_eos=True))
next(stream)
held, go_on = threading.Event(), threading.Event()
def hold():
    with stream._turn, stream._running._lock, llm._engine._state.changed, llm._engine._state.giving_back:
        held.set()
        go_on.wait(60)
thread = threading.Thread(target=hold)
thread.start()
held.wait(60)
child = os.fork()
if child == 0:
    signal.alarm(20)
    try:
        next(stream)
    except RuntimeError as error:
        print("fork" in str(error), len(stream.output.outputs))
    stream._running.cancel()
    stream.close()
    llm.close()
    del stream, llm
    sys.stdout.flush()
    os._exit(0)
print(os.waitpid(child, 0)[1])
go_on.set()
thread.join()
"""
        done = python_case.python(code, NANO)
        self.assertEqual(done.stdout, "True 1\n0\n", done.stderr)

    def test_the_end_of_the_interpreter(self):
        code = """
import asyncio, builtins, gc, sys
from deepinfer import LLM, AsyncLLM, SamplingParams
gc.disable()
long = SamplingParams(max_tokens=100000, ignore_eos=True)
llm = LLM(sys.argv[1])
one, two, three = (llm.stream("a", long) for _ in range(3))
for stream in (one, two, three):
    next(stream)
builtins.kept, two.itself, sys.kept = one, two, three
builtins.engine = AsyncLLM(sys.argv[1])
async def work():
    asyncio.ensure_future(builtins.engine.complete("a", long))
    async for _ in builtins.engine.stream("a", long):
        break
asyncio.run(work())
"""
        done = python_case.python(code, NANO)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))


if __name__ == "__main__":
    common.main()
