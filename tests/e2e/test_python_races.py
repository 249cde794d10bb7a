#!/usr/bin/env python3
"""The Python package between two threads, and where a signal handler or Ctrl-C comes at the worst moment. The moment is
made certain: a function of the library is replaced by one that does the other thing in the middle of the call."""

# labels: long
import contextlib
import gc
import signal
import threading
from unittest import mock

import common
from python_engines import NANO

from deepinfer import LLM, EngineError, _engine, _library


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


if __name__ == "__main__":
    common.main()
