"""The engine for asyncio programs: one thread carries the events of all requests to their event loops."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from typing import Any, AsyncIterator, Callable, Dict, List, Optional, Sequence, Tuple, TypeVar

from ._inputs import Message, Prompt
from ._requests import Runner, Running
from .errors import EngineError, ParameterError
from .llm import LLM
from .outputs import RequestOutput, ScoreOutput, StreamOutput
from .sampling_params import SamplingParams
from .tokenizer import Tokenizer

__all__ = ["AsyncLLM"]

_WAIT_MS = 10
_Result = TypeVar("_Result")


class _Watched:
    """A request and the coroutine that waits for it."""

    def __init__(self, running: Running, loop: asyncio.AbstractEventLoop) -> None:
        self.running, self.loop = running, loop
        self.changed = asyncio.Event()


class _Carrier(threading.Thread):
    """Owns the runner. Requests come in and cancellations too; the coroutines are woken when there is news.

    Orders come by a SimpleQueue, which holds no lock that a signal handler, a finalizer or the end of the interpreter
    could find taken.
    """

    def __init__(self, window: int) -> None:
        super().__init__(name="deepinfer-events", daemon=True)
        # (request, True) begins it, (request, False) drops it, None ends the thread.
        self.orders: "queue.SimpleQueue[Optional[Tuple[_Watched, bool]]]" = queue.SimpleQueue()
        self.ended = False
        self.runner = Runner(window)
        self.known: Dict[int, _Watched] = {}

    def put(self, watched: _Watched) -> None:
        self.orders.put((watched, True))
        if self.ended:  # looked at behind the put, as the thread looks for orders once more behind the end
            raise _closed()

    def drop(self, watched: _Watched) -> None:
        self.orders.put((watched, False))

    def stop(self) -> None:
        self.orders.put(None)

    def run(self) -> None:
        reason: Exception = _closed()
        try:
            while self._obey(wait=not self.runner):
                changed = self.runner.step(_WAIT_MS)
                self._tell([self.known[id(running)] for running in changed])
                for running in changed:
                    if running.done:
                        self.known.pop(id(running), None)
        except Exception as problem:  # who waits must hear of it
            reason = problem
        self.ended = True
        while not self._obey(wait=False):
            pass
        left = list(self.known.values())
        for watched in left:  # before they count as done: who wakes meanwhile must find the reason
            watched.running.fail(reason)
        self.runner.cancel()
        self._tell(left)

    def _obey(self, wait: bool) -> bool:
        """All orders there are; one is waited for if wanted. False: the thread ends."""
        while True:
            try:
                order = self.orders.get(block=wait)
            except queue.Empty:
                return True
            if order is None:
                return False
            wait = False
            watched, wanted = order
            if wanted:
                self.known[id(watched.running)] = watched
                self.runner.add(watched.running)
            else:
                self.known.pop(id(watched.running), None)
                self.runner.remove(watched.running)

    @staticmethod
    def _tell(watched: Sequence[_Watched]) -> None:
        loops: Dict[asyncio.AbstractEventLoop, List[_Watched]] = {}
        for one in watched:
            loops.setdefault(one.loop, []).append(one)
        for loop, group in loops.items():
            with contextlib.suppress(RuntimeError):  # a loop that was closed waits for nothing
                loop.call_soon_threadsafe(_set_all, group)


def _closed() -> EngineError:
    return EngineError("this AsyncLLM is closed", "cancelled")


def _set_all(watched: Sequence[_Watched]) -> None:
    for one in watched:
        one.changed.set()


class AsyncLLM:
    """An open model for asyncio; the parameters are those of LLM. Opening blocks; `await AsyncLLM.open(...)` does not.

    Requests of any number of tasks and event loops run together. A task that is cancelled, or leaves its iterator,
    cancels its request.
    """

    def __init__(self, model: Any = None, **options: Any) -> None:
        self._llm = LLM(model, **options)
        self._lock = threading.RLock()  # close() may be called by a signal handler
        self._carrier: Optional[_Carrier] = None
        self._closed = False
        self._by_id: Dict[str, _Watched] = {}

    @classmethod
    async def open(cls, model: Any = None, **options: Any) -> "AsyncLLM":
        """The same without blocking the event loop."""
        return await _in_thread(lambda: cls(model, **options))

    @property
    def llm(self) -> LLM:
        """The same engine for calls that block."""
        return self._llm

    def get_tokenizer(self) -> Tokenizer:
        return self._llm.get_tokenizer()

    # ------------------------------------------------------------------------------------------------ requests

    async def generate(
        self,
        prompt: Optional[Prompt] = None,
        sampling_params: Optional[SamplingParams] = None,
        request_id: Optional[str] = None,
        *,
        messages: Optional[Sequence[Message]] = None,
        **more: Any,
    ) -> AsyncIterator[RequestOutput]:
        """The answer as it grows: every RequestOutput holds all of it so far, the last one is `finished`.

        A slow reader gets fewer, larger steps. `more`: priority, tenant, deadline_ms; with messages also thinking,
        reasoning_effort and continue_final_message.
        """
        async with self._request(prompt, sampling_params, messages, request_id, more) as watched:
            while True:
                await watched.changed.wait()
                watched.changed.clear()
                output = watched.running.output()
                if output.finished:
                    _raise_failure(watched.running)
                if output.finished or any(answer.token_ids for answer in output.outputs):
                    yield output
                if output.finished:
                    return

    async def stream(
        self,
        prompt: Optional[Prompt] = None,
        sampling_params: Optional[SamplingParams] = None,
        request_id: Optional[str] = None,
        *,
        messages: Optional[Sequence[Message]] = None,
        **more: Any,
    ) -> AsyncIterator[StreamOutput]:
        """What is new in the answer, piece by piece."""
        async with self._request(prompt, sampling_params, messages, request_id, more, pieces=True) as watched:
            pieces = watched.running.pieces
            assert pieces is not None
            while True:
                done = watched.running.done
                while pieces:
                    yield pieces.popleft()
                if done:
                    _raise_failure(watched.running)
                    return
                await watched.changed.wait()
                watched.changed.clear()

    async def complete(
        self,
        prompt: Optional[Prompt] = None,
        sampling_params: Optional[SamplingParams] = None,
        request_id: Optional[str] = None,
        *,
        messages: Optional[Sequence[Message]] = None,
        **more: Any,
    ) -> RequestOutput:
        """The whole answer, once it is there."""
        async with self._request(prompt, sampling_params, messages, request_id, more) as watched:
            while not watched.running.done:
                await watched.changed.wait()
                watched.changed.clear()
            _raise_failure(watched.running)
            return watched.running.output()

    async def score(self, *args: Any, **named: Any) -> List[ScoreOutput]:
        """LLM.score in a thread."""
        return await _in_thread(lambda: self._llm.score(*args, **named))

    async def save_state(self, *args: Any, **named: Any) -> int:
        """LLM.save_state in a thread."""
        return await _in_thread(lambda: self._llm.save_state(*args, **named))

    async def load_state(self, *args: Any, **named: Any) -> int:
        """LLM.load_state in a thread."""
        return await _in_thread(lambda: self._llm.load_state(*args, **named))

    async def abort(self, request_id: str) -> None:
        """Cancels a request by its id; its iterator ends with finish_reason "cancelled". Unknown ids are let pass."""
        watched = self._by_id.get(request_id)
        if watched is not None:
            watched.running.cancel()

    @contextlib.asynccontextmanager
    async def _request(
        self,
        prompt: Any,
        params: Any,
        messages: Any,
        request_id: Optional[str],
        more: Dict[str, Any],
        pieces: bool = False,
    ) -> AsyncIterator[_Watched]:
        if request_id is not None and not isinstance(request_id, str):
            raise TypeError(f"request_id must be a str, not {type(request_id).__name__}")
        # Long prompts take a while to become ids: not in the event loop.
        job = await _in_thread(lambda: self._llm._job(prompt, params, messages=messages, request_id=request_id, **more))
        watched = _Watched(Running(self._llm._engine, job, pieces), asyncio.get_running_loop())
        carrier = self._start()
        if self._by_id.setdefault(job.request_id, watched) is not watched:
            raise ParameterError(f"request_id {job.request_id!r} is in use", "invalid_argument", "request_id")
        try:
            carrier.put(watched)
            yield watched
        finally:
            del self._by_id[job.request_id]
            if not watched.running.done:
                carrier.drop(watched)

    def _start(self) -> _Carrier:
        with self._lock:
            self._llm._engine.check()
            if self._closed:
                raise _closed()
            if self._carrier is None:
                carrier = _Carrier(self._llm._window)
                carrier.start()
                self._carrier = carrier
            return self._carrier

    # ---------------------------------------------------------------------------------------------------- life

    def close(self) -> None:
        """Cancels all requests and gives everything back; blocks until that is done."""
        self._closed = True
        if not self._llm._engine.foreign:  # a child of fork() has neither the thread nor perhaps who holds the lock
            with self._lock:
                carrier, self._carrier = self._carrier, None
            if carrier is not None:
                carrier.stop()
                if carrier is not threading.current_thread():  # a finalizer may run there
                    carrier.join()
        self._llm.close()

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *_: Any) -> None:
        await _in_thread(self.close)

    def __enter__(self) -> "AsyncLLM":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        carrier = getattr(self, "_carrier", None)
        if carrier is not None:
            carrier.stop()


def _raise_failure(running: Running) -> None:
    """A request that was cancelled by its id is an answer that ends early, not a fault."""
    failure = running.failure
    if failure is not None and not (running.was_cancelled and getattr(failure, "code", "") == "cancelled"):
        raise failure


async def _in_thread(work: Callable[[], _Result]) -> _Result:
    return await asyncio.get_running_loop().run_in_executor(None, work)
