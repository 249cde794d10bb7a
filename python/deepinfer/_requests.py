"""Requests on their way: from parameters to the library, and from its events to outputs."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import threading
import time
from array import array
from collections import deque
from ctypes import POINTER, byref, c_char_p, c_int32, c_void_p
from typing import Any, Deque, Dict, List, Optional, Tuple

from . import _library
from ._engine import ChatPrompt, Engine, address
from ._library import Error, Event
from .errors import EngineError
from .outputs import CompletionOutput, DraftRecord, Logprob, RequestMetrics, RequestOutput, StreamOutput, Usage
from .sampling_params import SamplingParams
from .structured_outputs import StructuredOutputsParams

_THINK_END = "</think>"


# --------------------------------------------------------------------------------------------------------- the way in


@dataclasses.dataclass
class Job:
    """One request before it is submitted."""

    request_id: str
    prompt: Optional[str]
    token_ids: "array[int]"
    params: SamplingParams
    chat: Optional[ChatPrompt] = None
    priority: int = 0
    tenant: Optional[bytes] = None
    deadline_ms: int = 0
    default_seed: Optional[int] = None
    where: str = ""
    """Before the text of errors: "prompts[17]: " """


def _id_pointer(ids: Any, kept: List[Any]) -> Any:
    values = array("i", ids)
    kept.append(values)
    return ctypes.cast(address(values), POINTER(c_int32)) if values else None


def fill_sampling(
    sampling: _library.Sampling,
    params: SamplingParams,
    chat: Optional[ChatPrompt],
    default_seed: Optional[int],
    kept: List[Any],
) -> None:
    """*kept holds what the structure points to."""
    for name in (
        "n",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "min_tokens",
        "ignore_eos",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "first_n_token_no_eos",
        "logits_hash",
    ):
        setattr(sampling, name, getattr(params, name))
    for name in ("max_tokens", "logprobs", "prompt_logprobs"):
        value = getattr(params, name)
        setattr(sampling, name, -1 if value is None else value)
    seed = next((s for s in (params.seq_seed, params.seed, default_seed) if s is not None), None)
    sampling.has_seed, sampling.seq_seed = seed is not None, seed or 0
    if params.stop:
        strings = [_library.c_string(text, "stop", f"[{i}]") for i, text in enumerate(params.stop)]
        sampling.stop, sampling.stop_count = (c_char_p * len(strings))(*strings), len(strings)
        kept.append(sampling.stop)
    if params.stop_token_ids:
        sampling.stop_token_ids = _id_pointer(params.stop_token_ids, kept)
        sampling.stop_token_count = len(params.stop_token_ids)
    if params.golden_token_ids:
        sampling.golden_token_ids = _id_pointer(params.golden_token_ids, kept)
        sampling.golden_token_count = len(params.golden_token_ids)
    if params.logit_bias:
        pairs = [_library.LogitBias(key, value) for key, value in params.logit_bias.items()]
        sampling.logit_bias, sampling.logit_bias_count = (_library.LogitBias * len(pairs))(*pairs), len(pairs)
        kept.append(sampling.logit_bias)
    so_args = params.so_args
    if isinstance(params.structured_outputs, StructuredOutputsParams):
        so_args = params.structured_outputs.so_args(
            chat.reasoning_end_token_id if chat is not None and chat.in_reasoning else None
        )
    if so_args:
        _fill_so_args(sampling.so_args, so_args, "so_args" if params.so_args else "structured_outputs", kept)


def _fill_so_args(target: _library.SoArgs, given: Any, name: str, kept: List[Any]) -> None:
    target.schema_type = _library.c_string(given["schema_type"], name)
    if given.get("schema") is not None:
        target.schema = _library.c_string(given["schema"], name)
    target.trigger_required = given.get("trigger_required", False)
    triggers, bound = given.get("trigger_token_ids"), given.get("bound_token_id")
    if triggers:
        target.trigger_token_ids, target.trigger_token_count = _id_pointer(triggers, kept), len(triggers)
    target.bound_token_id = -1 if bound is None else bound


# -------------------------------------------------------------------------------------------------------- the way out


class Splitter:
    """Splits the output of a chat turn into reasoning and answer at the id </think>; text that only spells the mark is
    text. Line breaks before the mark, and those that begin a part that the prompt did not begin, belong to the mark."""

    def __init__(self, chat: ChatPrompt) -> None:
        self.mark = chat.reasoning_end_token_id
        self.in_reasoning = chat.in_reasoning
        self.leading = not chat.continued
        self.held = 0
        self.reasoning_tokens = 0

    def _put(self, text: str) -> Tuple[str, str]:
        if self.leading:
            text = text.lstrip("\n")
        if not text:
            return "", ""
        self.leading = False
        if not self.in_reasoning:
            return "", text
        kept = text.rstrip("\n")
        breaks = len(text) - len(kept)
        if not kept:
            self.held += breaks
            return "", ""
        kept, self.held = "\n" * self.held + kept, breaks
        return kept, ""

    def push(self, token_id: int, text: str) -> Tuple[str, str]:
        """(reasoning, answer) that became certain with a token."""
        if self.in_reasoning:
            self.reasoning_tokens += 1
        if token_id != self.mark:
            return self._put(text)
        out = self._put(text[: -len(_THINK_END)] if text.endswith(_THINK_END) else text)
        self.leading = self.in_reasoning
        self.in_reasoning, self.held = False, 0
        return out

    def finish(self, text: str) -> Tuple[str, str]:
        reasoning, answer = self._put(text)
        if self.in_reasoning:
            reasoning += "\n" * self.held
            self.held = 0
        return reasoning, answer


class _Sample:
    """One answer as far as it is known."""

    def __init__(self, index: int, chat: Optional[ChatPrompt], params: SamplingParams) -> None:
        self.index = index
        self.text: List[str] = []
        self.reasoning: List[str] = []
        self.token_ids: List[int] = []
        self.logprobs: Optional[List[Dict[int, Logprob]]] = None if params.logprobs is None else []
        self.drafts: Optional[List[DraftRecord]] = [] if params.draft_records else None
        self.cumulative = 0.0
        self.finish_reason: Optional[str] = None
        self.stop_reason: Any = None
        self.logits_hash: Optional[str] = None
        self.splitter = Splitter(chat) if chat else None

    def output(self) -> CompletionOutput:
        for parts in (self.text, self.reasoning):
            if len(parts) > 1:
                parts[:] = ["".join(parts)]
        splitter = self.splitter
        return CompletionOutput(
            index=self.index,
            text="".join(self.text),
            token_ids=list(self.token_ids),
            cumulative_logprob=None if self.logprobs is None else self.cumulative,
            logprobs=None if self.logprobs is None else list(self.logprobs),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            reasoning="".join(self.reasoning) if splitter and splitter.reasoning_tokens else None,
            logits_hash=self.logits_hash,
            drafts=None if self.drafts is None else list(self.drafts),
        )


class Running:
    """A request from submission to its end. One thread takes its events; any thread may look at the output, cancel the
    request and end it.

    Two threads must not be in the library with one handle, and the text of an event lies there until the next call. So
    whoever submits or takes is `_busy` meanwhile; free() of another thread, or of a signal handler that came between,
    then cancels only, and the busy one frees the handle when it is back. One side sets `_busy` before it looks at
    `done`, the other `done` before it looks at `_busy`: no order of their steps has a handle freed in use.
    """

    def __init__(self, engine: Engine, job: Job, keep_pieces: bool = False) -> None:
        self.engine, self.job = engine, job
        self.handle = c_void_p()
        self.done = False
        self.was_cancelled = False
        self.failure: Optional[Exception] = None
        self.samples = [_Sample(i, job.chat, job.params) for i in range(job.params.n)]
        self.prompt_logprobs: Optional[List[Optional[Dict[int, Logprob]]]] = (
            None if job.params.prompt_logprobs is None else []
        )
        self.pieces: Optional[Deque[StreamOutput]] = deque() if keep_pieces else None
        self.seed: Optional[int] = None
        self.usage = Usage()
        self.metrics = RequestMetrics()
        self._lock = threading.RLock()
        self._busy = False
        self._event: Any = None  # only while it runs: it is large, and a batch may be long
        self._next = engine.library.di_request_next

    def submit(self) -> bool:
        """False when the engine's queue is full. On failure the request is done."""
        mine = False
        try:
            with self._lock:
                if self._busy:
                    return True
                mine = self._busy = True
            return True if self.done or self.handle else self._submit()
        finally:
            if mine:
                self._busy = False
                if self.done:
                    self._release()

    def _submit(self) -> bool:
        if self.was_cancelled:
            self.fail(EngineError("the request was cancelled before it began", "cancelled"))
            return True
        kept: List[Any] = []
        job, error = self.job, Error()
        self._event = Event()
        params = _library.RequestParams()
        self.engine.library.di_request_params_default(byref(params))
        segment = _library.Segment()
        segment.token_ids = ctypes.cast(address(job.token_ids), POINTER(c_int32))
        segment.token_count = len(job.token_ids)
        params.segments, params.segment_count = ctypes.pointer(segment), 1 if job.token_ids else 0
        params.priority, params.tenant, params.deadline_ms = job.priority, job.tenant, job.deadline_ms
        params.draft_records = job.params.draft_records
        if job.chat and job.chat.in_reasoning:
            params.stop_arm_token_id = job.chat.reasoning_end_token_id
        try:
            params.id = _library.c_string(job.request_id, "request_id")
            fill_sampling(params.sampling, job.params, job.chat, job.default_seed, kept)
            with self.engine.use() as engine:
                if self.engine.library.di_submit(engine, byref(params), byref(self.handle), byref(error)) == 0:
                    if self.was_cancelled:  # meanwhile
                        self._cancel()
                    return True
            failure = self._failure(error)
            if getattr(failure, "code", "") == "queue_full":
                return False
            self.fail(failure)
        except (TypeError, ValueError, RuntimeError) as problem:
            self.fail(problem)
        return True

    def _failure(self, error: Error) -> Exception:
        """The engine knows structured_outputs as so_args."""
        failure = _library.failure(error, self.job.where)
        param = getattr(failure, "param", None) or ""
        if self.job.params.structured_outputs is None or not param.startswith("so_args"):
            return failure
        message = str(failure).replace("so_args.schema", "structured_outputs").replace("so_args", "structured_outputs")
        return type(failure)(message, getattr(failure, "code", ""), "structured_outputs")

    def fail(self, failure: Exception) -> None:
        self.failure, self.done = failure, True

    def take(self, timeout_ms: int, every: bool = False) -> bool:
        """Takes one event, or all that there are; False when none came in time."""
        mine = took = False
        try:
            with self._lock:
                if self._busy:
                    return False
                mine = self._busy = True
            event = self._event
            while not self.done and self._next(self.handle, timeout_ms, byref(event)):
                took = True
                self._take(event)
                if not every:
                    break
                timeout_ms = 0
        except Exception as problem:  # the engine was closed by another thread, for instance
            took = True
            if not self.done:
                self.fail(problem)
        finally:
            if mine:
                self._busy = False
                if self.done:
                    self._release()
        return took

    def _take(self, event: Any) -> None:
        kind = event.kind
        with self._lock:
            if self.done:  # ended by another thread
                return
            if kind == _library.EVENT_TOKEN:
                self._take_token(event)
            elif kind == _library.EVENT_PROMPT_TOKEN:
                assert self.prompt_logprobs is not None
                self.prompt_logprobs.append(None if math.isnan(event.logprob) else self._logprobs(event))
            elif kind == _library.EVENT_FINISH:
                self._take_finish(event)
            else:
                self._take_summary(event)

    @staticmethod
    def _text(event: Any) -> str:
        length = event.text_length
        return ctypes.string_at(event.text, length).decode("utf-8", "replace") if length else ""

    def _take_token(self, event: Any) -> None:
        sample = self.samples[event.sample]
        token_id, text, reasoning = event.token_id, self._text(event), ""
        sample.token_ids.append(token_id)
        if sample.splitter:
            reasoning, text = sample.splitter.push(token_id, text)
        self._add(sample, text, reasoning)
        entry = None
        if sample.logprobs is not None:
            entry = self._logprobs(event)
            sample.logprobs.append(entry)
            sample.cumulative += event.logprob
        record = None
        if sample.drafts is not None and event.drafts.count:
            record = self._drafts(event.drafts)
            sample.drafts.append(record)
        if self.pieces is not None:
            logprobs = [entry] if entry else None
            piece = StreamOutput(self.job.request_id, sample.index, text, [token_id], logprobs, reasoning)
            piece.drafts = record
            self.pieces.append(piece)

    @staticmethod
    def _drafts(record: Any) -> DraftRecord:
        confidence = record.confidence[: record.count] if record.confidence else []
        return DraftRecord(record.position, record.token_ids[: record.count], record.accepted, confidence)

    def _take_finish(self, event: Any) -> None:
        sample = self.samples[event.sample]
        text, reasoning = self._text(event), ""
        if event.stop_string is not None and self.job.params.include_stop_str_in_output:
            text += event.stop_string.decode("utf-8", "replace")
        if sample.splitter:
            reasoning, text = sample.splitter.finish(text)
        self._add(sample, text, reasoning)
        sample.finish_reason = _library.FINISH_NAMES.get(event.finish_reason, "error")
        if event.stop_string is not None:
            sample.stop_reason = event.stop_string.decode("utf-8", "replace")
        elif event.stop_token_id in (self.job.params.stop_token_ids or ()):
            sample.stop_reason = event.stop_token_id
        if event.has_logits_hash:
            sample.logits_hash = f"{event.logits_hash:016x}"
        if self.pieces is not None:
            self.pieces.append(
                StreamOutput(
                    self.job.request_id,
                    sample.index,
                    text,
                    [],
                    None,
                    reasoning,
                    sample.finish_reason,
                    sample.stop_reason,
                )
            )

    def _take_summary(self, event: Any) -> None:
        """PROMPT and DONE: what is known of the request as a whole."""
        usage, timings = event.usage, event.timings
        self.seed = event.seed
        self.usage = Usage(
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.completion_tokens,
            sum(s.splitter.reasoning_tokens for s in self.samples if s.splitter),
            usage.draft_tokens,
            usage.accepted_draft_tokens,
        )
        self.metrics = RequestMetrics(timings.queue_ms, timings.prefill_ms, timings.first_token_ms, timings.total_ms)
        if event.kind != _library.EVENT_DONE:
            return
        if event.status:
            self.failure = self._failure(event.error)
        self.done = True

    @staticmethod
    def _add(sample: _Sample, text: str, reasoning: str) -> None:
        if text:
            sample.text.append(text)
        if reasoning:
            sample.reasoning.append(reasoning)

    def _logprobs(self, event: Any) -> Dict[int, Logprob]:
        """The chosen id first, then the best ones."""
        chosen, spelling, top = event.token_id, self.engine.spelling, event.top
        entries = {chosen: Logprob(event.logprob, None, spelling(chosen))}
        for rank in range(event.top_count):
            best = top[rank]
            entries[best.token_id] = Logprob(best.logprob, rank + 1, spelling(best.token_id))
        return entries

    def output(self) -> RequestOutput:
        if self.engine.foreign:  # nothing changes there, and the lock may be one of a thread that is not there
            return self._output()
        with self._lock:
            return self._output()

    def _output(self) -> RequestOutput:
        job = self.job
        if self.failure is not None:
            for sample in self.samples:
                sample.finish_reason = sample.finish_reason or ("cancelled" if self.was_cancelled else "error")
        return RequestOutput(
            request_id=job.request_id,
            prompt=job.prompt,
            prompt_token_ids=job.token_ids.tolist(),
            outputs=[sample.output() for sample in self.samples],
            finished=self.done,
            prompt_logprobs=None if self.prompt_logprobs is None else list(self.prompt_logprobs),
            metrics=dataclasses.replace(self.metrics),
            usage=dataclasses.replace(self.usage),
            seed=self.seed,
            fingerprint=self.engine.info.fingerprint,
            error=self.failure,
        )

    def cancel(self) -> None:
        """Ends the request at the engine's next step; its last events follow. Any thread."""
        self.was_cancelled = True
        self._cancel()

    def _cancel(self) -> None:
        if self.engine.foreign:
            return
        with self._lock:
            if self.handle:
                self.engine.library.di_request_cancel(self.handle)

    def free(self) -> None:
        """Cancels what still runs and frees the handle: now, or when the thread that is busy with it is back."""
        self.done = True
        if self.engine.foreign:
            return
        with self._lock:
            if self._busy:
                self._cancel()
            else:
                self._release()

    def _release(self) -> None:
        if self.engine.foreign:
            return
        with self._lock:
            handle, self.handle, self._event = self.handle, c_void_p(), None
            if handle:
                self.engine.library.di_request_free(handle)

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.free()


class Runner:
    """Many requests at once, a bounded number of them in the engine. Used by one thread at a time."""

    def __init__(self, window: int) -> None:
        self.window = max(1, window)
        self.pending: Deque[Running] = deque()
        self.active: List[Running] = []
        self._lead: Optional[Running] = None

    def __len__(self) -> int:
        return len(self.pending) + len(self.active)

    def add(self, running: Running) -> None:
        self.pending.append(running)

    def _submit(self) -> List[Running]:
        failed = []
        while self.pending and len(self.active) < self.window:
            running = self.pending[0]
            self.active.append(running)  # before it is submitted, so that an interruption finds it
            if not running.submit():
                self.active.pop()
                break
            self.pending.popleft()
            if running.done:
                failed.append(self.active.pop())
        return failed

    def step(self, timeout_ms: int) -> List[Running]:
        """Submits what fits and takes the events there are; waits if there are none. Returns the requests that changed.

        Running requests get their tokens step by step together, so waiting for one of them is waiting for all."""
        changed = self._submit()
        if not self.active:
            if self.pending and not changed:  # the queue is full of other people's requests
                time.sleep(timeout_ms / 1000)
            return changed
        lead = self._lead if self._lead is not None and not self._lead.done else self.active[0]
        moved = lead.take(0 if changed else timeout_ms)
        for running in self.active:
            if running.take(0, every=True) or (running is lead and moved):
                changed.append(running)
        self._lead = next((r for r in changed if not r.done), None)
        if any(running.done for running in changed):
            self.active = [running for running in self.active if not running.done]
        return changed

    def remove(self, running: Running) -> None:
        """Ends one request, if it is here."""
        if running in self.active:
            self.active.remove(running)
            running.free()
        elif running in self.pending:
            self.pending.remove(running)

    def cancel(self) -> None:
        """Ends everything; the engine lets go of it at its next step."""
        for running in self.active:
            running.free()
        self.active.clear()
        self.pending.clear()
