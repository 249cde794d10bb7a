"""The shared library: where it is, its functions and structures (include/deepinfer.h), its errors.

The library is loaded when the first engine is opened, so parameters and outputs can be used without it.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import re
import threading
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_bool,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
)
from ctypes import c_void_p
from typing import Any, Dict, List, NoReturn, Optional

from ._version import __version__
from .errors import EngineError, ParameterError

# The variable does not begin with DEEPINFER_: those are options of the engine, and it refuses unknown ones.
LIBRARY_VARIABLE = "LIBDEEPINFER"
LIBRARY_NAME = "libdeepinfer.so.0"
_PACKAGE = pathlib.Path(__file__).resolve().parent


# ------------------------------------------------------------------------------------------------------ structures


class Error(Structure):
    _fields_ = [("status", c_int), ("param", ctypes.c_char * 96), ("message", ctypes.c_char * 928)]


class Option(Structure):
    _fields_ = [("name", c_char_p), ("value", c_char_p)]


class ModelInfo(Structure):
    _fields_ = [
        ("path", c_char_p),
        ("architecture", c_char_p),
        ("isa", c_char_p),
        ("fingerprint", c_char_p),
        ("profile", c_char_p),
        ("vocabulary", c_uint32),
        ("context", c_uint32),
        ("bos_token_id", c_uint32),
        ("has_tokenizer", c_bool),
        ("thinking_default", c_bool),
    ]


class ChatPrompt(Structure):
    _fields_ = [
        ("token_ids", POINTER(c_int32)),
        ("token_count", c_size_t),
        ("in_reasoning", c_bool),
        ("continued", c_bool),
        ("reasoning_end_token_id", c_int32),
    ]


class LogitBias(Structure):
    _fields_ = [("token_id", c_int32), ("bias", c_float)]


class SoArgs(Structure):
    _fields_ = [
        ("schema_type", c_char_p),
        ("schema", c_char_p),
        ("trigger_token_ids", POINTER(c_int32)),
        ("trigger_token_count", c_size_t),
        ("bound_token_id", c_int32),
        ("trigger_required", c_bool),
    ]


class Sampling(Structure):
    _fields_ = [
        ("temperature", c_float),
        ("top_p", c_float),
        ("top_k", c_int32),
        ("min_p", c_float),
        ("max_tokens", c_int64),
        ("min_tokens", c_int64),
        ("stop", POINTER(c_char_p)),
        ("stop_count", c_size_t),
        ("stop_token_ids", POINTER(c_int32)),
        ("stop_token_count", c_size_t),
        ("ignore_eos", c_bool),
        ("n", c_int32),
        ("has_seed", c_bool),
        ("seq_seed", c_uint64),
        ("logprobs", c_int32),
        ("prompt_logprobs", c_int32),
        ("repetition_penalty", c_float),
        ("presence_penalty", c_float),
        ("frequency_penalty", c_float),
        ("logit_bias", POINTER(LogitBias)),
        ("logit_bias_count", c_size_t),
        ("golden_token_ids", POINTER(c_int32)),
        ("golden_token_count", c_size_t),
        ("first_n_token_no_eos", c_int64),
        ("so_args", SoArgs),
        ("logits_hash", c_bool),
    ]


class Segment(Structure):
    _fields_ = [
        ("token_ids", POINTER(c_int32)),
        ("token_count", c_size_t),
        ("text", c_char_p),
        ("text_length", c_size_t),
    ]


class RequestParams(Structure):
    _fields_ = [
        ("id", c_char_p),
        ("segments", POINTER(Segment)),
        ("segment_count", c_size_t),
        ("sampling", Sampling),
        ("priority", c_int32),
        ("tenant", c_char_p),
        ("owner", c_char_p),
        ("deadline_ms", c_int64),
        ("stop_arm_token_id", c_int32),
        ("stop_disarm", POINTER(c_char_p)),
        ("stop_disarm_count", c_size_t),
        ("draft_records", c_bool),
        ("on_ready", c_void_p),
        ("on_ready_arg", c_void_p),
    ]


class Logprob(Structure):
    _fields_ = [("token_id", c_int32), ("logprob", c_float)]


class Usage(Structure):
    _fields_ = [
        ("prompt_tokens", c_uint64),
        ("cached_tokens", c_uint64),
        ("completion_tokens", c_uint64),
        ("draft_tokens", c_uint64),
        ("accepted_draft_tokens", c_uint64),
    ]


class Timings(Structure):
    _fields_ = [("queue_ms", c_double), ("prefill_ms", c_double), ("first_token_ms", c_double), ("total_ms", c_double)]


class DraftRecord(Structure):
    _fields_ = [
        ("position", c_int64),
        ("token_ids", POINTER(c_int32)),
        ("confidence", POINTER(c_float)),
        ("count", c_size_t),
        ("accepted", c_size_t),
    ]


class Event(Structure):
    _fields_ = [
        ("kind", c_int),
        ("sample", c_int32),
        ("position", c_int64),
        ("token_id", c_int32),
        ("text", c_void_p),
        ("text_length", c_size_t),
        ("logprob", c_float),
        ("top", POINTER(Logprob)),
        ("top_count", c_size_t),
        ("finish_reason", c_int),
        ("stop_token_id", c_int32),
        ("stop_string", c_char_p),
        ("has_logits_hash", c_bool),
        ("logits_hash", c_uint64),
        ("seed", c_uint64),
        ("drafts", DraftRecord),
        ("usage", Usage),
        ("timings", Timings),
        ("status", c_int),
        ("error", Error),
    ]


EVENT_PROMPT, EVENT_PROMPT_TOKEN, EVENT_TOKEN, EVENT_FINISH, EVENT_DONE = 1, 2, 3, 4, 5
FINISH_NAMES = {1: "stop", 2: "length", 3: "cancelled", 4: "error"}
NO_TOKEN = 0xFFFFFFFF

STRUCTURES = {
    "di_error": Error,
    "di_option": Option,
    "di_model_info": ModelInfo,
    "di_chat_prompt": ChatPrompt,
    "di_logit_bias": LogitBias,
    "di_so_args": SoArgs,
    "di_sampling": Sampling,
    "di_segment": Segment,
    "di_request_params": RequestParams,
    "di_logprob": Logprob,
    "di_usage": Usage,
    "di_timings": Timings,
    "di_draft_record": DraftRecord,
    "di_event": Event,
}

ScoreRow = ctypes.CFUNCTYPE(c_bool, c_void_p, c_size_t, POINTER(c_float))

_E = POINTER(Error)
_FUNCTIONS: Dict[str, Any] = {
    "di_version": (c_char_p, []),
    "di_status_name": (c_char_p, [c_int]),
    "di_option_name": (c_char_p, [c_size_t]),
    "di_option_value": (c_int, [POINTER(Option), c_size_t, c_char_p, POINTER(c_void_p), _E]),
    "di_open": (c_int, [c_char_p, POINTER(Option), c_size_t, POINTER(c_void_p), _E]),
    "di_close": (None, [c_void_p]),
    "di_engine_info": (POINTER(ModelInfo), [c_void_p]),
    "di_tokenize": (c_int, [c_void_p, c_char_p, c_size_t, c_bool, POINTER(POINTER(c_int32)), POINTER(c_size_t), _E]),
    "di_detokenize": (c_int, [c_void_p, c_void_p, c_size_t, POINTER(c_void_p), POINTER(c_size_t), _E]),
    "di_render_chat": (c_int, [c_void_p, c_char_p, c_size_t, POINTER(ChatPrompt), _E]),
    "di_free": (None, [c_void_p]),
    "di_request_params_default": (None, [POINTER(RequestParams)]),
    "di_submit": (c_int, [c_void_p, POINTER(RequestParams), POINTER(c_void_p), _E]),
    "di_request_next": (c_bool, [c_void_p, c_int64, POINTER(Event)]),
    "di_request_cancel": (None, [c_void_p]),
    "di_request_free": (None, [c_void_p]),
    "di_save_state": (c_int, [c_void_p, c_void_p, c_size_t, c_char_p, c_char_p, POINTER(c_size_t), _E]),
    "di_load_state": (c_int, [c_void_p, c_char_p, c_char_p, POINTER(c_size_t), _E]),
    "di_score": (c_int, [c_void_p, c_void_p, c_size_t, ScoreRow, c_void_p, POINTER(c_uint64), _E]),
    "di_logprobs": (c_bool, [c_void_p, c_uint32, c_void_p, c_size_t, POINTER(c_float), POINTER(c_int32)]),
}


# --------------------------------------------------------------------------------------------------------- loading


def candidates() -> List[pathlib.Path]:
    """Files that are tried, best first. A named library is the only one."""
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        return [pathlib.Path(named)]
    carried, built = _PACKAGE / LIBRARY_NAME, _PACKAGE.parents[1] / "build" / "release" / LIBRARY_NAME
    return [carried, built]


def _open_library() -> ctypes.CDLL:
    tried = candidates()
    found = [path for path in tried if path.exists()]
    if os.environ.get(LIBRARY_VARIABLE) and not found:
        raise EngineError(f"{LIBRARY_VARIABLE} names {tried[0]}, which does not exist", "not_found", LIBRARY_VARIABLE)
    name = str(found[0]) if found else LIBRARY_NAME
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        if found:
            raise EngineError(
                f"the library {name} cannot be loaded: {error}. It needs libpcre2-8, libutf8proc and libxxhash "
                "(Debian: libpcre2-8-0 libutf8proc2 libxxhash0)",
                "io",
            ) from None
        raise EngineError(
            f"{LIBRARY_NAME} was not found: neither at {' nor at '.join(map(str, tried))}, nor where the system keeps "
            "libraries. Run `make` in deepinfer's source tree, then `pip install ./python` there, or set "
            f"{LIBRARY_VARIABLE} to the path of the library",
            "not_found",
        ) from None


def _check_version(library: ctypes.CDLL) -> None:
    where = library._name
    try:
        function = library.di_version
    except AttributeError:
        raise EngineError(f"{where} is not a deepinfer library: it has no di_version", "unsupported") from None
    function.restype = c_char_p
    version = function().decode()
    if version != __version__:
        raise EngineError(
            f"{where} is deepinfer {version}, this Python package is {__version__}; the two must be equal. "
            "Build and install both from one source tree (`make`, then `pip install ./python`)",
            "unsupported",
        )


def _declare(library: ctypes.CDLL) -> None:
    for name, (result, arguments) in _FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise EngineError(
                f"{library._name} has no function {name}: it is older or newer than this Python package. "
                "Build and install both from one source tree",
                "unsupported",
            ) from None
        function.restype, function.argtypes = result, arguments


def _check_layout(library: ctypes.CDLL) -> None:
    """Builds between two releases share a version number. The defaults fill a structure to its end and no further."""
    size = ctypes.sizeof(RequestParams)
    room = (ctypes.c_ubyte * (2 * size + 256))(*([0xA5] * (2 * size + 256)))
    library.di_request_params_default(ctypes.cast(room, POINTER(RequestParams)))
    written = len(bytes(room).rstrip(b"\xa5"))
    params = RequestParams.from_buffer(room)
    if written != size or params.sampling.n != 1 or params.stop_arm_token_id != -1:
        raise EngineError(
            f"{library._name} has other structures ({written} bytes) than this Python package ({size} bytes): "
            "build and install both from one source tree",
            "unsupported",
        )


_lock = threading.RLock()  # a signal handler that loads may interrupt a load
_loaded: Optional[ctypes.CDLL] = None


def load() -> ctypes.CDLL:
    """The library, checked. The same object every time."""
    global _loaded
    if _loaded is not None:
        return _loaded
    with _lock:
        if _loaded is None:
            library = _open_library()
            _check_version(library)
            _declare(library)
            _check_layout(library)
            _loaded = library
        return _loaded


def library_version() -> str:
    """Version of the shared library in use; raises RuntimeError when there is none or another one."""
    return str(load().di_version().decode())


def embedded_model() -> Optional[str]:
    """Folder of the model that the package carries, or that lies in the source tree around it."""
    for folder in (_PACKAGE / "models" / "tiny", _PACKAGE.parents[1] / "models" / "tiny"):
        if (folder / "config.json").exists():
            return str(folder)
    return None


# ---------------------------------------------------------------------------------------------------------- errors

# Names that Python users know by others.
PYTHON_NAMES = {
    "context": "max_model_len",
    "max-seqs": "max_num_seqs",
    "max-rows": "max_num_batched_tokens",
    "effort": "reasoning_effort",
}
_OWN_FAULT = frozenset(
    ["invalid_argument", "usage", "config", "not_found", "format", "unsupported", "context_length_exceeded", "limit"]
)


def python_name(option: str) -> str:
    return PYTHON_NAMES.get(option, option.replace("-", "_"))


def failure(error: Error, where: str = "") -> Exception:
    """The exception for a failure that the library reported. `where` goes before its message."""
    code = load().di_status_name(error.status).decode()
    param = error.param.decode("utf-8", "replace")
    message = error.message.decode("utf-8", "replace")
    message = re.sub(r"(?:--|\boption )([a-z][a-z0-9-]*[a-z0-9])", lambda match: python_name(match[1]), message)
    kind = ParameterError if code in _OWN_FAULT else EngineError
    return kind(where + message, code, python_name(param) if param else None)


def fail(error: Error, where: str = "") -> NoReturn:
    raise failure(error, where)


def text_bytes(value: str, name: str) -> bytes:
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ParameterError(
            f"{name}: character {error.start} is half of a surrogate pair, which is no text", "format", name
        ) from None


def c_string(value: str, name: str, place: str = "") -> bytes:
    """For what the library reads up to its first zero byte: it would see only a part of a text that holds one. Text
    whose length goes along is text_bytes. `place` goes behind the name in the message: "[2]"."""
    if "\0" in value:
        raise ParameterError(f"{name}{place} holds a zero character", "invalid_argument", name)
    return text_bytes(value, name)
