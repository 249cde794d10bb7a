"""The engine for batches and for streams of one request."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import pathlib
import threading
import time
from array import array
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Union

from . import _inputs, _library
from ._engine import Engine, ModelInfo
from ._inputs import Message, Prompt
from ._names import Neutral, drop_neutral
from ._progress import Progress
from ._requests import Job, Runner, Running
from .errors import EngineError, ParameterError
from .outputs import RequestOutput, ScoreOutput, StreamOutput
from .sampling_params import SamplingParams
from .tokenizer import Tokenizer

__all__ = ["LLM", "Stream"]

_WAIT_MS = 20
_INT32, _INT64 = 2**31 - 1, 2**63 - 1

# Of vLLM, at the values that ask for what is done anyway.
_NEUTRAL: Neutral = {
    "tensor_parallel_size": ((1,), "there is one device"),
    "pipeline_parallel_size": ((1,), "there is one device"),
    "dtype": (("auto",), "weights keep their types, and the arithmetic is one"),
    "kv_cache_dtype": (("auto",), "the cache has the model's types"),
    "quantization": ((), "the checkpoint says how it is quantised"),
    "tokenizer": ((), "it is the model's"),
    "tokenizer_mode": (("auto",), "there is one"),
    "trust_remote_code": ((True, False), "no code is loaded"),
    "enforce_eager": ((True, False), "there are no graphs"),
    "enable_prefix_caching": ((True,), "cache_ram bounds the cache"),
    "enable_chunked_prefill": ((True,), "prompts are computed in chunks of `chunk` rows"),
    "disable_log_stats": ((True, False), "nothing is logged by itself"),
    "gpu_memory_utilization": ((), "cache_ram bounds the memory of the cache"),
    "swap_space": ((), "swap_ram is its name here"),
}


def _spec_of(given: Any) -> Optional[int]:
    """The drafts that vLLM's speculative_config asks for."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise TypeError(f"speculative_config must be a mapping, not {type(given).__name__}")
    rest = drop_neutral(given, {"method": (("mtp", "deepseek_mtp"), "drafts come from the model's own head")})
    count = rest.pop("num_speculative_tokens", None)
    if rest or isinstance(count, bool) or not isinstance(count, int):
        raise TypeError("speculative_config has num_speculative_tokens, an integer, and perhaps method; see also spec")
    return count


Params = Union[SamplingParams, Sequence[SamplingParams], None]
ProgressBar = Union[bool, Callable[..., Any]]


class LLM:
    """An open model.

    model                   folder in the official layout; None: DEEPINFER_MODEL, else the embedded model
    max_model_len           positions of a sequence; None: the model's, or what fits into memory
    max_num_seqs            sequences in flight (64)
    max_num_batched_tokens  rows of one step (256)
    load_format             "auto", or "dummy": made-up weights for any config
    seed                    seed of every request that has none; None: drawn for each
    thinking                chat with reasoning: True, False, None = the model's default
    reasoning_effort        "low", "high", "max" or 1 .. 100
    generation_config       "none", or "model": the model's temperature and top_p where no SamplingParams are given
    spec                    drafts: "auto", 1 .. 8 or "off" ("auto"); they change the speed and no token
    speculative_config      the same as vLLM says it: {"num_speculative_tokens": 4}

    Every other option of docs/configuration.md goes by its name with underscores: threads, cpu_isa, chunk, cache_ram,
    cache_dir, max_queue, ... What is not given comes from DEEPINFER_* variables, the file that `config` names and the
    defaults.

    May be used from several threads at once. It cannot be used in a process made by fork() after it was opened.
    """

    def __init__(
        self,
        model: Union[str, "os.PathLike[str]", None] = None,
        *,
        max_model_len: Optional[int] = None,
        max_num_seqs: Optional[int] = None,
        max_num_batched_tokens: Optional[int] = None,
        load_format: Optional[str] = None,
        seed: Optional[int] = None,
        thinking: Union[bool, str, None] = None,
        reasoning_effort: Union[str, int, None] = None,
        generation_config: Optional[str] = None,
        threads: Optional[int] = None,
        cache_dir: Union[str, "os.PathLike[str]", None] = None,
        cache_ram: Union[str, int, None] = None,
        spec: Union[str, int, None] = None,
        speculative_config: Optional[Mapping[str, Any]] = None,
        **options: Union[str, int, float, bool, None],
    ) -> None:
        folder = os.fspath(model) if isinstance(model, (str, os.PathLike)) else None
        if model is not None and not isinstance(folder, str):
            raise TypeError(f"model must be a path, not {type(model if folder is None else folder).__name__}")
        integers = {
            "max_model_len": max_model_len,
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "seed": seed,
            "threads": threads,
        }
        for name, value in integers.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise TypeError(f"{name} must be an integer, not {type(value).__name__}")
        given: Dict[str, Any] = {
            **integers,
            "load_format": load_format,
            "thinking": thinking,
            "reasoning_effort": reasoning_effort,
            "generation_config": generation_config,
            "cache_dir": cache_dir,
            "cache_ram": cache_ram,
            "spec": _spec_of(speculative_config) if spec is None else spec,
            **drop_neutral(options, _NEUTRAL),
        }
        self._engine = Engine(folder, given)
        self._numbers = itertools.count()
        setting = self._engine.setting
        number = setting("seed")
        self._seed = None if number is None else int(number)
        self._thinking = {"on": True, "off": False}.get(setting("thinking") or "")
        self._effort = setting("effort")
        self._model_defaults = setting("generation-config") == "model"
        self._window = 2 * int(setting("max-seqs") or 1)

    # ---------------------------------------------------------------------------------------------------- life

    def close(self) -> None:
        """Cancels what runs in other threads and gives everything back. Closing twice is allowed."""
        self._engine.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("an LLM is an open engine and cannot be pickled; open one in each process")

    def __repr__(self) -> str:
        return f"<LLM {self.info.path} {self.info.fingerprint}{' closed' if self._engine.closed else ''}>"

    # --------------------------------------------------------------------------------------------------- facts

    @property
    def info(self) -> ModelInfo:
        return self._engine.info

    @property
    def fingerprint(self) -> str:
        """Model, tokenizer, numeric profile and build; equal fingerprints give equal bits."""
        return self.info.fingerprint

    @property
    def max_model_len(self) -> int:
        return self.info.context

    def get_tokenizer(self) -> Tokenizer:
        return Tokenizer(self._engine)

    def get_default_sampling_params(self) -> SamplingParams:
        """What is used where no SamplingParams are given."""
        if not self._model_defaults:
            return SamplingParams()
        path = pathlib.Path(self.info.path, "generation_config.json")
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        names = [name for name in ("temperature", "top_p") if isinstance(found.get(name), (int, float))]
        return SamplingParams(**{name: found[name] for name in names})

    # ------------------------------------------------------------------------------------------------ requests

    def generate(
        self,
        prompts: Union[Prompt, Sequence[Prompt], None] = None,
        sampling_params: Params = None,
        *,
        prompt_token_ids: Union[Sequence[int], Sequence[Sequence[int]], None] = None,
        use_tqdm: ProgressBar = True,
        priority: Union[int, Sequence[int]] = 0,
        tenant: Optional[str] = None,
        deadline_ms: int = 0,
        on_error: str = "raise",
    ) -> List[RequestOutput]:
        """Completes prompts, any number at once; results come in the order of the prompts.

        prompts: text (BOS is put before it), lists of token ids, {"prompt": ...} or {"prompt_token_ids": ...}, or a
        list of these. sampling_params: one for all, or one for each. use_tqdm: a line of progress if stderr is a
        terminal, or something to call like tqdm.tqdm. priority: higher goes first. tenant: name of the cache's part.
        deadline_ms: from now, 0 = none.
        on_error: "raise" ends the batch with the first failure; "return" puts it into that output's `error`.
        """
        self._engine.check()
        listed = _inputs.prompt_list(prompts, prompt_token_ids)

        def prepare(index: int, job: Job) -> None:
            name, prompt = listed[index]
            job.prompt, job.token_ids = _inputs.one_prompt(self._engine, prompt, name)
            _inputs.check_room(self._engine, job, name)

        names = [name for name, _ in listed]
        jobs = self._jobs(names, sampling_params, priority, tenant, deadline_ms)
        return self._run(jobs, prepare, use_tqdm, on_error)

    def chat(
        self,
        messages: Union[Sequence[Message], Sequence[Sequence[Message]]],
        sampling_params: Params = None,
        *,
        thinking: Optional[bool] = None,
        reasoning_effort: Union[str, int, None] = None,
        tools: Optional[Sequence[Any]] = None,
        continue_final_message: bool = False,
        chat_template_kwargs: Optional[Mapping[str, Any]] = None,
        use_tqdm: ProgressBar = True,
        priority: Union[int, Sequence[int]] = 0,
        tenant: Optional[str] = None,
        deadline_ms: int = 0,
        on_error: str = "raise",
    ) -> List[RequestOutput]:
        """Answers conversations: one list of messages {"role", "content"}, or a list of such lists.

        thinking, reasoning_effort: as in the constructor, for these conversations. The reasoning comes in
        `outputs[i].reasoning`, the answer in `outputs[i].text`. continue_final_message: the last message, an
        assistant's, is continued. chat_template_kwargs: {"thinking"} or {"enable_thinking"}, as vLLM has them. The
        other parameters are those of generate.
        """
        self._engine.check()
        thinking = _inputs.template_thinking(chat_template_kwargs, thinking)
        listed = _inputs.conversations(messages)

        def prepare(index: int, job: Job) -> None:
            name, turns = listed[index]
            self._prepare_chat(job, turns, thinking, reasoning_effort, tools, continue_final_message, name)

        names = [name for name, _ in listed]
        jobs = self._jobs(names, sampling_params, priority, tenant, deadline_ms)
        return self._run(jobs, prepare, use_tqdm, on_error)

    def stream(
        self,
        prompt: Optional[Prompt] = None,
        sampling_params: Optional[SamplingParams] = None,
        *,
        messages: Optional[Sequence[Message]] = None,
        thinking: Optional[bool] = None,
        reasoning_effort: Union[str, int, None] = None,
        continue_final_message: bool = False,
        priority: int = 0,
        tenant: Optional[str] = None,
        deadline_ms: int = 0,
    ) -> "Stream":
        """One request as it is written: an iterator of StreamOutput. Give a prompt or messages."""
        job = self._job(
            prompt,
            sampling_params,
            messages=messages,
            thinking=thinking,
            reasoning_effort=reasoning_effort,
            continue_final_message=continue_final_message,
            priority=priority,
            tenant=tenant,
            deadline_ms=deadline_ms,
        )
        return Stream(Running(self._engine, job, keep_pieces=True))

    def score(
        self,
        prompts: Union[Prompt, Sequence[Prompt], None] = None,
        *,
        prompt_token_ids: Union[Sequence[int], Sequence[Sequence[int]], None] = None,
        use_tqdm: ProgressBar = True,
        on_row: Optional[Callable[[int, Any], None]] = None,
    ) -> List[ScoreOutput]:
        """Log-probability of every token given those before it, by the full model. on_row, if given, is called with
        the number of the row and its raw logits (array of float), one text after another, in a thread of its own."""
        self._engine.check()
        prepared = [
            _inputs.one_prompt(self._engine, prompt, name)
            for name, prompt in _inputs.prompt_list(prompts, prompt_token_ids)
        ]
        outputs = []
        with contextlib.closing(
            Progress("score", "tokens", sum(len(ids) for _, ids in prepared), use_tqdm)
        ) as progress:
            for text, ids in prepared:
                logprobs, argmax, digest = self._engine.score(ids, on_row, lambda row: progress.update(1, 1))
                # From left to right, as the program adds them: sum() of newer Pythons adds otherwise.
                nll = 0.0
                for value in logprobs[1:]:
                    nll -= value  # type: ignore[operator]
                outputs.append(
                    ScoreOutput(
                        text,
                        ids.tolist(),
                        logprobs,
                        argmax,
                        nll,
                        math.exp(nll / (len(ids) - 1)) if len(ids) > 1 else math.nan,
                        f"{digest:016x}",
                        self.fingerprint,
                    )
                )
        return outputs

    # -------------------------------------------------------------------------------------------------- states

    def save_state(
        self, path: Union[str, "os.PathLike[str]"], prompt: Prompt, *, tenant: Optional[str] = None
    ) -> int:
        """Writes what the prefix cache in memory holds of a prompt to a file, and returns how many positions that are.

        prompt: as in generate; of an answer `output.prompt_token_ids + output.outputs[0].token_ids`. tenant: as in
        generate. Nothing of it in the cache is a ParameterError with code "not_found".
        """
        self._engine.check()
        _, ids = _inputs.one_prompt(self._engine, prompt, "prompt")
        return self._engine.save_state(ids, _inputs.tenant_bytes("tenant", tenant), _inputs.path_bytes("path", path))

    def load_state(self, path: Union[str, "os.PathLike[str]"], *, tenant: Optional[str] = None) -> int:
        """Reads such a file into the prefix cache, so that prompts that begin alike do not compute that again; returns
        the positions. A file of another model or another numeric profile, or a damaged one, is refused."""
        self._engine.check()
        return self._engine.load_state(_inputs.tenant_bytes("tenant", tenant), _inputs.path_bytes("path", path))

    # ---------------------------------------------------------------------------------------------- inner parts

    def _prepare_chat(
        self,
        job: Job,
        turns: Sequence[Message],
        thinking: Optional[bool],
        effort: Union[str, int, None],
        tools: Optional[Sequence[Any]],
        continue_final: bool,
        name: str,
    ) -> None:
        where = "" if name == "messages" else name + ": "
        options: Dict[str, Any] = {
            "thinking": self._thinking if thinking is None and effort is None else thinking,
            "reasoning_effort": self._effort if effort is None else effort,
            "tools": tools,
        }
        # An effort of the constructor alone does not turn thinking on; one that is given here does.
        if options["thinking"] is None and effort is None:
            options["thinking"] = self.info.thinking_default
        job.chat = _inputs.render(self._engine, turns, options, continue_final, where)
        job.token_ids = job.chat.token_ids
        job.prompt = self._engine.detokenize(job.token_ids).decode("utf-8", "replace")
        _inputs.check_room(self._engine, job, name)

    def _jobs(
        self, names: Sequence[str], sampling_params: Params, priority: Any, tenant: Any, deadline_ms: Any
    ) -> List[Job]:
        """Jobs that still lack their prompts."""
        count = len(names)
        chosen = self.get_default_sampling_params() if sampling_params is None else sampling_params
        params = _inputs.each("sampling_params", chosen, count, _inputs.check_params)
        priorities = _inputs.each("priority", priority, count, _inputs.check_integer(-_INT32 - 1, _INT32))
        name = _inputs.tenant_bytes("tenant", tenant)
        deadline = _inputs.check_integer(0, _INT64)("deadline_ms", deadline_ms)
        return [
            Job(
                str(next(self._numbers)),
                None,
                array("i"),
                params[i],
                None,
                priorities[i],
                name,
                deadline,
                self._seed,
                f"{names[i]}: " if count > 1 else "",
            )
            for i in range(count)
        ]

    def _job(
        self,
        prompt: Any,
        params: Any,
        *,
        messages: Any = None,
        thinking: Any = None,
        reasoning_effort: Any = None,
        continue_final_message: bool = False,
        priority: int = 0,
        tenant: Any = None,
        deadline_ms: int = 0,
        request_id: Optional[str] = None,
    ) -> Job:
        """One request, checked."""
        self._engine.check()
        if (prompt is None) == (messages is None):
            raise TypeError("give one of prompt and messages")
        if params is not None and not isinstance(params, SamplingParams):
            raise TypeError(f"sampling_params must be SamplingParams, not {type(params).__name__}")
        job = self._jobs(["prompt" if messages is None else "messages"], params, priority, tenant, deadline_ms)[0]
        if request_id is not None:
            _library.c_string(request_id, "request_id")
            job.request_id = request_id
        if messages is not None:
            self._prepare_chat(job, messages, thinking, reasoning_effort, None, continue_final_message, "messages")
            return job
        if thinking is not None or reasoning_effort is not None or continue_final_message:
            raise TypeError("thinking, reasoning_effort and continue_final_message go with messages only")
        job.prompt, job.token_ids = _inputs.one_prompt(self._engine, prompt, "prompt")
        _inputs.check_room(self._engine, job, "prompt")
        return job

    def _run(
        self, jobs: Sequence[Job], prepare: Callable[[int, Job], None], use_tqdm: ProgressBar, on_error: str
    ) -> List[RequestOutput]:
        if on_error not in ("raise", "return"):
            raise ParameterError(
                f"on_error must be 'raise' or 'return', not {on_error!r}", "invalid_argument", "on_error"
            )
        if not isinstance(use_tqdm, bool) and not callable(use_tqdm):
            raise TypeError(f"use_tqdm must be True, False or callable, not {type(use_tqdm).__name__}")
        keep, places = on_error == "return", {}
        outputs: List[Optional[RequestOutput]] = [None] * len(jobs)
        runner, finished = Runner(self._window), []
        for index, job in enumerate(jobs):
            refusal = None
            try:
                prepare(index, job)
            except (TypeError, ValueError) as failure:
                if not keep:
                    raise
                refusal = failure
            running = Running(self._engine, job)
            places[id(running)] = index
            if refusal is None:
                runner.add(running)
            else:
                running.fail(refusal)
                finished.append(running)
        try:
            with contextlib.closing(Progress("generate", "prompts", len(jobs), use_tqdm)) as progress:
                while True:
                    for running in finished:
                        if running.failure is not None and not keep:
                            raise running.failure
                        outputs[places[id(running)]] = running.output()
                        progress.update(1, running.usage.completion_tokens)
                    if not runner:
                        break
                    finished = [running for running in runner.step(_WAIT_MS) if running.done]
        finally:
            runner.cancel()
        return [output for output in outputs if output is not None]


class Stream(Iterator[StreamOutput]):
    """Iterator over what is new in one request. Leaving it early (close, or the end of a with block) cancels it.

    `output` is the request as far as it is known; complete once the iterator has ended. Several threads may share a
    stream, each piece goes to one of them; any thread may close it. An interruption ends it: a piece could be lost.
    """

    def __init__(self, running: Running) -> None:
        self._running = running
        self._turn = threading.RLock()
        self._reading = False

    @property
    def output(self) -> RequestOutput:
        return self._running.output()

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> StreamOutput:
        if self._running.engine.foreign:  # who holds the lock may not be there
            self._running.engine.check()
        with self._turn:
            if self._reading:  # in a signal handler
                raise EngineError("this stream is being read by what was interrupted", "unsupported")
            try:
                self._reading = True
                return self._read()
            except BaseException:
                self._running.free()
                raise
            finally:
                self._reading = False

    def _read(self) -> StreamOutput:
        running = self._running
        pieces = running.pieces
        assert pieces is not None
        while not pieces:
            running.engine.check()
            if running.done:
                if running.failure is not None:
                    failure, running.failure = running.failure, None
                    raise failure
                raise StopIteration
            if running.handle:
                running.take(_WAIT_MS)
            elif not running.submit():
                time.sleep(_WAIT_MS / 1000)
        return pieces.popleft()

    def close(self) -> None:
        """Cancels the request if it still runs."""
        self._running.free()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
