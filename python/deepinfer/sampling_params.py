"""How the tokens of an answer are chosen."""

from __future__ import annotations

import dataclasses
import json
import numbers
from array import array
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

from ._names import Neutral, nearest, strict_names
from .errors import ParameterError
from .structured_outputs import StructuredOutputsParams, as_params

__all__ = ["SamplingParams"]

_INT32 = 2**31 - 1


def _wrong(name: str, message: str) -> ParameterError:
    return ParameterError(name + ("" if message.startswith("[") else " ") + message, "invalid_argument", name)


def _integer(name: str, value: Any, low: int, high: int, note: str = "") -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}")
    number = int(value)
    if not low <= number <= high:
        raise _wrong(name, f"must be an integer in {low} .. {high}{note}, not {number}")
    return number


def _number(name: str, value: Any, allowed: Callable[[float], bool], range_text: str) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    if not allowed(float(value)):
        raise _wrong(name, f"must be {range_text}, not {value}")
    return float(value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {type(value).__name__}")
    return value


def token_ids(name: str, value: Any, low: int = 0) -> "array[int]":
    """A sequence of token ids as int32."""
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
        raise TypeError(f"{name} must be a sequence of token ids, not {type(value).__name__}")
    try:
        ids = array("i", value)
    except TypeError:
        bad = next((i, v) for i, v in enumerate(value) if not hasattr(v, "__index__"))
        raise TypeError(f"{name}[{bad[0]}] must be an integer, not {type(bad[1]).__name__}") from None
    except OverflowError:
        raise _wrong(name, "holds a number that does not fit 32 bits") from None
    if ids and min(ids) < low:
        index = next(i for i, v in enumerate(ids) if v < low)
        raise _wrong(name, f"[{index}] is {ids[index]}; ids are {low} or more")
    return ids


_SO_ARGS = ("schema_type", "schema", "trigger_token_ids", "bound_token_id", "trigger_required")
_SCHEMA_TYPES = ("json", "json_object", "regex", "ebnf", "gbnf", "lark", "w3c", "iso")


def _so_args(value: Any) -> Dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"so_args must be a mapping, not {type(value).__name__}")
    for name in value:
        if name not in _SO_ARGS:
            raise TypeError(f"so_args has no member {name!r}{nearest(str(name), _SO_ARGS)}")
    kind = value.get("schema_type")
    if kind not in _SCHEMA_TYPES:
        raise _wrong("so_args", f"['schema_type'] must be one of {', '.join(_SCHEMA_TYPES)}, not {kind!r}")
    result = dict(value)
    if kind == "json" and isinstance(result.get("schema"), (Mapping, bool)):
        result["schema"] = json.dumps(result["schema"], ensure_ascii=False)
    schema = result.get("schema")
    if not isinstance(schema, str) and (kind != "json_object" or schema is not None):
        raise TypeError(f"so_args['schema'] must be a str, not {type(schema).__name__}")
    if schema is not None and "\0" in schema:
        raise _wrong("so_args", "['schema'] holds a zero character")
    if not isinstance(result.get("trigger_required", False), bool):
        raise TypeError("so_args['trigger_required'] must be a bool")
    if result.get("trigger_token_ids") is not None:
        result["trigger_token_ids"] = list(token_ids("so_args['trigger_token_ids']", result["trigger_token_ids"]))
    if result.get("bound_token_id") is not None:
        result["bound_token_id"] = _integer("so_args['bound_token_id']", result["bound_token_id"], 0, _INT32)
    return result


# Of vLLM, at the values that change nothing.
_NEUTRAL: Neutral = {
    "best_of": ((1,), "nothing is generated to be thrown away; n is there"),
    "skip_special_tokens": ((True,), "the end of the sequence never becomes text"),
    "spaces_between_special_tokens": ((True, False), "no spaces are put there"),
    "detokenize": ((True,), "there is always text"),
    "bad_words": (([],), "not available; logit_bias of single ids is"),
    "allowed_token_ids": ((), "not available; logit_bias and structured_outputs are"),
    "logits_processors": (([],), "not available: an answer is a function of its parameters"),
    "truncate_prompt_tokens": ((), "a prompt is never cut"),
    "guided_decoding": ((), "use structured_outputs"),
}


@strict_names("a sampling parameter", _NEUTRAL)
@dataclasses.dataclass
class SamplingParams:
    """Parameters of one request. None means "not given". Wrong values are a ValueError that names the parameter."""

    n: int = 1
    """Answers to one prompt, 1 .. 4096."""
    temperature: float = 1.0
    """0 = greedy."""
    top_p: float = 1.0
    """Keep the best tokens up to this share; above 0, at most 1."""
    top_k: int = 0
    """Keep the K best tokens; 0 or -1 = off."""
    min_p: float = 0.0
    """Drop tokens below this share of the best one."""
    max_tokens: Optional[int] = None
    """Tokens to produce at most; None = the room left in the context."""
    min_tokens: int = 0
    """No end of sequence and no stop id before so many tokens."""
    stop: Optional[Union[str, Sequence[str]]] = None
    """Text that ends the answer; it is not part of it."""
    stop_token_ids: Optional[Sequence[int]] = None
    """Ids that end the answer."""
    ignore_eos: bool = False
    """Go on after the end-of-sequence id."""
    seq_seed: Optional[int] = None
    """Seed of the noise, 0 .. 2^64 - 1. None = the engine's, else drawn; the one used is reported."""
    seed: Optional[int] = None
    """Another name of seq_seed."""
    logprobs: Optional[int] = None
    """Log-probabilities of the chosen token and of the N best, 0 .. 1000."""
    prompt_logprobs: Optional[int] = None
    """The same for the prompt's tokens."""
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Optional[Mapping[int, float]] = None
    """Added to the logits: {token id: -100 .. 100}."""
    golden_token_ids: Optional[Sequence[int]] = None
    """Ids to take whatever the logits say, by place in the answer; -1 = sample."""
    first_n_token_no_eos: int = 0
    """No end of sequence in the first N tokens."""
    so_args: Optional[Mapping[str, Any]] = None
    """Structured output: {"schema_type": json, json_object, regex, ebnf, gbnf, lark, w3c or iso; "schema" (a str; for
    json also a dict); "trigger_token_ids"?, "bound_token_id"?, "trigger_required"?}."""
    logits_hash: bool = False
    """Report the 64-bit hash over all logits."""
    structured_outputs: Optional[Union[StructuredOutputsParams, Mapping[str, Any]]] = None
    """What the answer must look like, in vLLM's words: json, regex, choice, grammar or json_object. In a chat that
    begins with reasoning it binds the answer behind it."""
    include_stop_str_in_output: bool = False
    """The stop string that ended an answer belongs to its text."""
    draft_records: bool = False
    """Report what became of drafts in `drafts` of each answer; an LLM drafts unless it has spec="off"."""

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Checks every value and makes plain lists. Done by the constructor and before every request."""
        self.n = _integer("n", self.n, 1, 4096)
        self.temperature = _number(
            "temperature", self.temperature, lambda v: 0 <= v <= 1e6, "in 0 .. 1000000 (0 = greedy)"
        )
        self.top_p = _number("top_p", self.top_p, lambda v: 0 < v <= 1, "above 0 and at most 1")
        self.top_k = _integer("top_k", self.top_k, -1, _INT32, " (0 or -1 = off)")
        self.min_p = _number("min_p", self.min_p, lambda v: 0 <= v <= 1, "in 0 .. 1")
        if self.max_tokens is not None:
            self.max_tokens = _integer("max_tokens", self.max_tokens, 0, _INT32)
        self.min_tokens = _integer("min_tokens", self.min_tokens, 0, _INT32)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _wrong("min_tokens", f"({self.min_tokens}) is above max_tokens ({self.max_tokens})")
        self._validate_stops()
        self._validate_seed()
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                setattr(self, name, _integer(name, getattr(self, name), 0, 1000))
        self.repetition_penalty = _number(
            "repetition_penalty", self.repetition_penalty, lambda v: 0 < v <= 1e6, "above 0 and at most 1000000"
        )
        for name in ("presence_penalty", "frequency_penalty"):
            setattr(self, name, _number(name, getattr(self, name), lambda v: -2 <= v <= 2, "in -2 .. 2"))
        self._validate_bias()
        if self.golden_token_ids is not None:
            self.golden_token_ids = list(token_ids("golden_token_ids", self.golden_token_ids, -1))
        self.first_n_token_no_eos = _integer("first_n_token_no_eos", self.first_n_token_no_eos, 0, _INT32)
        if self.so_args is not None:
            self.so_args = _so_args(self.so_args)
        self.ignore_eos = _flag("ignore_eos", self.ignore_eos)
        if self.structured_outputs is not None:
            self.structured_outputs = as_params(self.structured_outputs)
            if self.so_args is not None:
                raise _wrong("structured_outputs", "and so_args exclude each other")
        for name in ("logits_hash", "include_stop_str_in_output", "draft_records"):
            setattr(self, name, _flag(name, getattr(self, name)))

    def _validate_stops(self) -> None:
        if isinstance(self.stop, str):
            self.stop = [self.stop]
        if self.stop is not None:
            if isinstance(self.stop, (bytes, Mapping)) or not hasattr(self.stop, "__iter__"):
                raise TypeError(f"stop must be a str or a sequence of str, not {type(self.stop).__name__}")
            stops: List[str] = list(self.stop)
            for i, text in enumerate(stops):
                if not isinstance(text, str):
                    raise TypeError(f"stop[{i}] must be a str, not {type(text).__name__}")
                if not text or "\0" in text:
                    raise _wrong("stop", f"[{i}] is empty or holds a zero character")
            self.stop = stops
        if self.stop_token_ids is not None:
            self.stop_token_ids = list(token_ids("stop_token_ids", self.stop_token_ids))

    def _validate_seed(self) -> None:
        for name in ("seq_seed", "seed"):
            if getattr(self, name) is not None:
                setattr(self, name, _integer(name, getattr(self, name), 0, 2**64 - 1))
        if self.seed is not None and self.seq_seed is not None and self.seed != self.seq_seed:
            raise _wrong("seed", "and seq_seed are the same parameter; give one")

    def _validate_bias(self) -> None:
        if self.logit_bias is None:
            return
        if not isinstance(self.logit_bias, Mapping):
            raise TypeError(f"logit_bias must be a mapping from token id to bias, not {type(self.logit_bias).__name__}")
        self.logit_bias = {
            _integer("logit_bias", key, 0, _INT32): _number(
                f"logit_bias[{key}]", value, lambda v: -100 <= v <= 100, "in -100 .. 100"
            )
            for key, value in self.logit_bias.items()
        }

    def clone(self) -> "SamplingParams":
        """A copy that shares nothing with this one."""
        return dataclasses.replace(self)

    def __repr__(self) -> str:
        """Only what differs from the defaults."""
        given = [
            f"{f.name}={getattr(self, f.name)!r}"
            for f in dataclasses.fields(self)
            if getattr(self, f.name) != f.default
        ]
        return f"SamplingParams({', '.join(given)})"
