"""One open engine of the library: life, threads, processes, and its short calls."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import threading
import weakref
from array import array
from ctypes import byref, c_float, c_int32, c_size_t, c_uint64, c_void_p
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

from . import _library
from ._library import Error
from ._names import nearest
from .errors import EngineError
from .sampling_params import SamplingParams

_WAIT_MS = 100  # how long Ctrl-C may have to wait for a call of the library


@dataclasses.dataclass(frozen=True)
class ModelInfo:
    """What an opened model is."""

    path: str
    architecture: str
    isa: str
    fingerprint: str
    profile: str
    vocabulary: int
    context: int
    bos_token_id: Optional[int]
    has_tokenizer: bool
    thinking_default: bool


@dataclasses.dataclass
class ChatPrompt:
    token_ids: "array[int]"
    in_reasoning: bool
    continued: bool
    reasoning_end_token_id: int


class _State:
    """The library's engine and who is in it. Apart from the object that users hold, because that is gone by the time
    the engine is given back.

    A signal handler and a finalizer may come between any two steps of a thread and close() there. Therefore the locks
    can be taken again by the thread that holds them, entering and leaving are single steps of a dict, and a thread that
    is a user itself does not wait for the users to leave.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library, self.handle = library, c_void_p()
        self.process = os.getpid()
        self.changed = threading.Condition()
        self.giving_back = threading.RLock()
        self.users: Dict[object, int] = {}  # token of a use: its thread
        self.closed = False

    def enter(self, token: object) -> None:
        """In this order: close() forbids first and looks for users then."""
        self.users[token] = threading.get_ident()
        if self.closed:
            raise _closed()

    def leave(self, token: object) -> None:
        """Without enter() before it, it does nothing."""
        with self.changed:
            self.users.pop(token, None)
            self.changed.notify_all()
            last = self.closed and not self.users
        if last:
            self._give_back()

    def close(self, wait: bool = True) -> None:
        """Back when the engine was given back, unless this thread is one of its users or need not wait: then the last
        user gives it back."""
        self.closed = True
        # A child of fork() has the memory of the engine, but none of its threads: nothing can be ended there.
        if os.getpid() != self.process:
            return
        with self.changed:
            if self.users and (not wait or threading.get_ident() in self.users.copy().values()):
                return
            while self.users:
                self.changed.wait()
        self._give_back()

    def _give_back(self) -> None:
        with self.giving_back:  # who comes second is back when the first has done it
            handle, self.handle = self.handle, c_void_p()
            self.library.di_close(handle)


def _closed() -> EngineError:
    return EngineError("this LLM is closed", "cancelled")


def option_text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, (str, os.PathLike)):
        text = os.fspath(value)
        if isinstance(text, str):
            return text
    raise TypeError(f"{name} must be a str, a number or True or False, not {type(value).__name__}")


_SAMPLING = frozenset(field.name for field in dataclasses.fields(SamplingParams))
# Options that are read here, by their names in the library.
_SETTINGS = ("model", "seed", "thinking", "effort", "generation-config", "max-seqs")
# Options of the program alone, or that have a parameter of their own here.
_PROGRAM_ONLY = frozenset(["model", "quiet", "log-level"])


def known_options() -> Dict[str, str]:
    """Keyword names that an engine takes, with the option's name in the library."""
    names: Dict[str, str] = {}
    library, index = _library.load(), 0
    while True:
        name = library.di_option_name(index)
        if name is None:
            return names
        if name.decode() not in _PROGRAM_ONLY:
            names[_library.python_name(name.decode())] = name.decode()
        index += 1


def _options(given: Mapping[str, Any]) -> Any:
    known = known_options()
    pairs = []
    for name, value in given.items():
        if name not in known:
            if name in _SAMPLING:
                raise TypeError(f"{name!r} is not a parameter of LLM, but one of SamplingParams")
            raise TypeError(f"{name!r} is not a parameter of LLM{nearest(name, [*known, 'model'])}")
        if value is not None:
            text = _library.c_string(option_text(name, value), name)
            pairs.append(_library.Option(known[name].encode(), text))
    return (_library.Option * max(1, len(pairs)))(*pairs), len(pairs)


class Engine:
    """Everything that needs the library's di_engine. Any thread of the process that opened it."""

    def __init__(self, model: Optional[str], options: Mapping[str, Any]) -> None:
        self.library = _library.load()
        pairs, count = _options(options)
        self._settings = {name: self._setting(pairs, count, name) for name in _SETTINGS}
        if model is None and not self._settings["model"]:
            model = _library.embedded_model()
        self._state = _State(self.library)
        # Before there is anything to give back: an interruption may come at once.
        self._finalizer = weakref.finalize(self, self._state.close)
        self._open(model, pairs, count)
        raw = self.library.di_engine_info(self._state.handle).contents
        self.info = ModelInfo(
            path=os.fsdecode(raw.path),
            architecture=raw.architecture.decode(),
            isa=raw.isa.decode(),
            fingerprint=raw.fingerprint.decode(),
            profile=raw.profile.decode(),
            vocabulary=raw.vocabulary,
            context=raw.context,
            bos_token_id=None if raw.bos_token_id == _library.NO_TOKEN else raw.bos_token_id,
            has_tokenizer=raw.has_tokenizer,
            thinking_default=raw.thinking_default,
        )
        self._spellings: Dict[int, str] = {}

    def _setting(self, pairs: Any, count: int, name: str) -> str:
        value, error = c_void_p(), Error()
        try:
            if self.library.di_option_value(pairs, count, name.encode(), byref(value), byref(error)):
                _library.fail(error)
            return ctypes.string_at(value).decode("utf-8", "replace")
        finally:
            self.library.di_free(value)

    def setting(self, name: str) -> Optional[str]:
        """What an option was set to, by a parameter, a variable or a file; None where nothing is chosen."""
        return self._settings[name] or None

    def _open(self, model: Optional[str], pairs: Any, count: int) -> None:
        """If Ctrl-C ended the waiting, what was opened is closed again."""
        path = None if model is None else _library.c_string(model, "model")
        error, state = Error(), self._state

        def work() -> int:
            token = object()
            try:
                state.enter(token)
                return int(self.library.di_open(path, pairs, count, byref(state.handle), byref(error)))
            finally:
                state.leave(token)

        def abandon() -> None:
            self._finalizer.detach()  # it would wait
            state.close(wait=False)

        if _aside("deepinfer-open", work, abandon):
            _library.fail(error)

    # ------------------------------------------------------------------------------------------------ guards

    def check(self) -> None:
        """Refuses use after close() and in a forked process."""
        if os.getpid() != self._state.process:
            raise EngineError(
                f"this LLM was opened by process {self._state.process} and cannot be used in process {os.getpid()}: "
                "fork() copies none of its threads. Open an LLM in each process, after the fork, or start processes "
                "with the method 'spawn'",
                "unsupported",
            )
        if self._state.closed:
            raise _closed()

    @property
    def foreign(self) -> bool:
        """In a forked child: handles may not even be freed."""
        return os.getpid() != self._state.process

    @property
    def closed(self) -> bool:
        return self._state.closed

    @contextlib.contextmanager
    def use(self) -> Iterator[c_void_p]:
        """The handle; it stays open meanwhile."""
        self.check()
        state, token = self._state, object()
        try:
            state.enter(token)
            yield state.handle
        finally:
            state.leave(token)

    def close(self) -> None:
        self._state.close()

    # -------------------------------------------------------------------------------------------------- text

    def tokenize(self, text: str, control: bool = False, name: str = "text") -> "array[int]":
        data = _library.text_bytes(text, name)
        ids, count, error = ctypes.POINTER(c_int32)(), c_size_t(), Error()
        try:
            with self.use() as handle:
                if self.library.di_tokenize(handle, data, len(data), control, byref(ids), byref(count), byref(error)):
                    _library.fail(error)
            return _copied(ids, count.value)
        finally:
            self.library.di_free(ids)

    def detokenize(self, ids: "array[int]") -> bytes:
        text, length, error = c_void_p(), c_size_t(), Error()
        try:
            with self.use() as handle:
                if self.library.di_detokenize(handle, address(ids), len(ids), byref(text), byref(length), byref(error)):
                    _library.fail(error)
            return ctypes.string_at(text, length.value)
        finally:
            self.library.di_free(text)

    def spelling(self, token_id: int) -> Optional[str]:
        """Text of one token; parts of characters are U+FFFD."""
        if not self.info.has_tokenizer:
            return None
        text = self._spellings.get(token_id)
        if text is None:
            text = self._spellings[token_id] = self.detokenize(array("i", [token_id])).decode("utf-8", "replace")
        return text

    def render_chat(self, conversation: bytes) -> ChatPrompt:
        prompt, error = _library.ChatPrompt(), Error()
        try:
            with self.use() as handle:
                if self.library.di_render_chat(handle, conversation, len(conversation), byref(prompt), byref(error)):
                    _library.fail(error)
            return ChatPrompt(
                _copied(prompt.token_ids, prompt.token_count),
                prompt.in_reasoning,
                prompt.continued,
                prompt.reasoning_end_token_id,
            )
        finally:
            self.library.di_free(prompt.token_ids)

    # ------------------------------------------------------------------------------------------------- states

    def save_state(self, ids: "array[int]", tenant: Optional[bytes], path: bytes) -> int:
        """Positions that the file holds."""
        positions, error = c_size_t(), Error()

        def work() -> int:
            with self.use() as handle:
                return int(
                    self.library.di_save_state(
                        handle, address(ids), len(ids), tenant, path, byref(positions), byref(error)
                    )
                )

        if _aside("deepinfer-save", work, lambda: None):
            _library.fail(error)
        return positions.value

    def load_state(self, tenant: Optional[bytes], path: bytes) -> int:
        """Positions that were read."""
        positions, error = c_size_t(), Error()

        def work() -> int:
            with self.use() as handle:
                return int(self.library.di_load_state(handle, path, tenant, byref(positions), byref(error)))

        if _aside("deepinfer-load", work, lambda: None):
            _library.fail(error)
        return positions.value

    # --------------------------------------------------------------------------------------------- evaluation

    def score(
        self,
        ids: "array[int]",
        on_row: Optional[Callable[[int, "array[float]"], None]],
        progress: Callable[[int], None],
    ) -> Tuple[List[Optional[float]], List[int], int]:
        """Log-probability of each token (None for the first), best next token after each, hash of all rows."""
        library, vocabulary, count = self.library, self.info.vocabulary, len(ids)
        logprobs: List[Optional[float]] = [None]
        argmax: List[int] = []
        logprob, best, first = c_float(), c_int32(), address(ids)
        failed: List[BaseException] = []
        abandoned = False

        def take(_: Any, row: int, logits: Any) -> bool:
            try:  # an exception cannot pass through the library
                last = row + 1 == count
                if not library.di_logprobs(
                    logits, vocabulary, first + 4 * (row + 1), 0 if last else 1, byref(logprob), byref(best)
                ):
                    raise EngineError(f"the logits of row {row} hold NaN or infinity", "numeric", "logits")
                if not last:
                    logprobs.append(logprob.value)
                argmax.append(best.value)
                if on_row is not None:
                    values = array("f")
                    values.frombytes(ctypes.string_at(logits, 4 * vocabulary))
                    on_row(row, values)
                progress(row + 1)
                return not (abandoned or self.closed)
            except BaseException as problem:
                failed.append(problem)
                return False

        callback, digest, error = _library.ScoreRow(take), c_uint64(), Error()

        def work() -> int:
            with self.use() as handle:
                return int(
                    library.di_score(handle, ids.buffer_info()[0], count, callback, None, byref(digest), byref(error))
                )

        def abandon() -> None:
            nonlocal abandoned
            abandoned = True

        try:
            # Aside, because Ctrl-C in the middle of a callback would be lost there.
            status = _aside("deepinfer-score", work, abandon)
            if failed:
                raise failed[0]
            if status:
                self.check()  # closed meanwhile?
                _library.fail(error)
        finally:
            failed.clear()
        return logprobs, argmax, digest.value


def _aside(name: str, work: Callable[[], int], abandon: Callable[[], None]) -> int:
    """Runs a long call of the library in a thread of its own: Ctrl-C need not wait for its end, it is abandoned."""
    result: List[int] = []
    failed: List[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as problem:
            failed.append(problem)

    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
        while thread.is_alive():
            thread.join(_WAIT_MS / 1000)
        if failed:
            raise failed[0]
        return result[0]
    except BaseException:
        abandon()
        raise
    finally:
        failed.clear()


def _copied(ids: Any, count: int) -> "array[int]":
    taken = array("i")
    if ids:
        taken.frombytes(ctypes.string_at(ids, 4 * count))
    return taken


def address(ids: "array[int]") -> int:
    """Of an array's first element; the array must outlive its use."""
    return ids.buffer_info()[0]
