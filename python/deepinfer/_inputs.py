"""From what users give - prompts in many forms, one or many parameters - to jobs, all checked before anything runs."""

from __future__ import annotations

import json
import operator
import os
from array import array
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from . import _library
from ._engine import ChatPrompt, Engine
from ._names import nearest
from ._requests import Job
from .errors import ParameterError
from .sampling_params import SamplingParams, token_ids

Prompt = Union[str, Sequence[int], Mapping[str, Any]]
"""Text, token ids, {"prompt": text} or {"prompt_token_ids": ids}."""

Message = Mapping[str, Any]


def _is_integer(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _is_list(value: Any) -> bool:
    return hasattr(value, "__iter__") and not isinstance(value, (str, bytes, Mapping))


def one_prompt(engine: Engine, prompt: Any, name: str) -> Tuple[Optional[str], "array[int]"]:
    """Text and ids. BOS stands before text; ids are used as they are."""
    if isinstance(prompt, Mapping):
        known = ("prompt", "prompt_token_ids")
        for key in prompt:
            if key not in known:
                raise TypeError(f"{name} has a member {key!r}, which is not known{nearest(str(key), known)}")
        if ("prompt" in prompt) == ("prompt_token_ids" in prompt):
            raise ParameterError(f"{name} must have one of 'prompt' and 'prompt_token_ids'", "invalid_argument", name)
        key = "prompt" if "prompt" in prompt else "prompt_token_ids"
        if key == "prompt" and not isinstance(prompt[key], str):
            raise TypeError(f"{name}['prompt'] must be a str, not {type(prompt[key]).__name__}")
        return one_prompt(engine, prompt[key], f"{name}[{key!r}]")
    if isinstance(prompt, str):
        if not engine.info.has_tokenizer:
            raise ParameterError(f"{name}: the model has no tokenizer; only token ids can go in", "unsupported", name)
        bos = engine.info.bos_token_id
        return prompt, array("i", [] if bos is None else [bos]) + engine.tokenize(prompt, name=name)
    ids = token_ids(name, prompt)
    if not ids:
        raise ParameterError(f"{name} is empty; a prompt needs at least one token", "invalid_argument", name)
    return None, ids


def prompt_list(prompts: Any, prompt_token_ids: Any) -> List[Tuple[str, Any]]:
    """(name for errors, prompt) of every prompt."""
    if (prompts is None) == (prompt_token_ids is None):
        raise TypeError("give one of prompts and prompt_token_ids")
    name = "prompts" if prompt_token_ids is None else "prompt_token_ids"
    given = prompts if prompt_token_ids is None else prompt_token_ids
    if prompt_token_ids is None and isinstance(given, (str, Mapping)):
        return [(name, given)]
    if not _is_list(given):
        wanted = (
            "a str, a mapping or a list of them" if prompt_token_ids is None else "a list of token ids or of such lists"
        )
        raise TypeError(f"{name} must be {wanted}, not {type(given).__name__}")
    items = list(given)
    if items and all(map(_is_integer, items)):
        return [(name, items)]
    for i, item in enumerate(items):
        if prompt_token_ids is not None and not _is_list(item):
            raise TypeError(f"{name}[{i}] must be a list of token ids, not {type(item).__name__}")
        if not isinstance(item, (str, Mapping)) and not _is_list(item):
            raise TypeError(f"{name}[{i}] must be a str, a list of token ids or a mapping, not {type(item).__name__}")
    return [(f"{name}[{i}]", item) for i, item in enumerate(items)]


def each(name: str, value: Any, count: int, check: Callable[[str, Any], Any]) -> List[Any]:
    """One value for all requests, or one for each."""
    if not _is_list(value):
        return [check(name, value)] * count
    values = list(value)
    if len(values) != count:
        raise ParameterError(f"{name} has {len(values)} values for {count} prompts", "invalid_argument", name)
    return [check(f"{name}[{i}]", v) for i, v in enumerate(values)]


def check_params(name: str, value: Any) -> SamplingParams:
    if not isinstance(value, SamplingParams):
        raise TypeError(f"{name} must be SamplingParams, not {type(value).__name__}")
    value.validate()
    return value


def check_integer(low: int, high: int) -> Callable[[str, Any], int]:
    def check(name: str, value: Any) -> int:
        if not _is_integer(value):
            raise TypeError(f"{name} must be an integer, not {type(value).__name__}")
        number = operator.index(value)
        if not low <= number <= high:
            raise ParameterError(f"{name} must be in {low} .. {high}, not {number}", "invalid_argument", name)
        return number

    return check


def tenant_bytes(name: str, value: Any) -> Optional[bytes]:
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    return _library.c_string(value, name)


def path_bytes(name: str, value: Any) -> bytes:
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a path, not {type(value).__name__}")
    if not text or "\0" in text:
        raise ParameterError(f"{name} is empty or holds a zero character", "invalid_argument", name)
    return os.fsencode(text)


def check_room(engine: Engine, job: Job, name: str) -> None:
    """The library checks this too, but only when the request's turn comes; by then much may have been computed."""
    used, context = len(job.token_ids), engine.info.context
    if used > context or (used == context and job.params.max_tokens != 0):
        raise ParameterError(
            f"{name} has {used} tokens and the context {context}, which leaves no room for an answer (max_model_len)",
            "context_length_exceeded",
            name,
        )
    vocabulary = engine.info.vocabulary
    if max(job.token_ids) >= vocabulary:
        index = next(i for i, v in enumerate(job.token_ids) if v >= vocabulary)
        raise ParameterError(
            f"{name}[{index}] is {job.token_ids[index]}; ids of this model are 0 .. {vocabulary - 1}",
            "invalid_argument",
            name,
        )


# ----------------------------------------------------------------------------------------------------------- chat


def conversations(messages: Any) -> List[Tuple[str, Sequence[Message]]]:
    """(name for errors, messages) of every conversation; one may be given without the list around it."""
    if not _is_list(messages):
        raise TypeError(f"messages must be a list of messages or a list of such lists, not {type(messages).__name__}")
    items = list(messages)
    if not items or all(isinstance(item, Mapping) for item in items):
        return [("messages", items)]
    for i, item in enumerate(items):
        if not _is_list(item):
            raise TypeError(
                f"messages[{i}] must be a mapping in a conversation, or a list of mappings in a list of conversations, "
                f"not {type(item).__name__}"
            )
    return [(f"messages[{i}]", list(item)) for i, item in enumerate(items)]


def template_thinking(given: Any, thinking: Optional[bool]) -> Optional[bool]:
    """The parameter, or what chat_template_kwargs says when that is absent."""
    if given is None:
        return thinking
    if not isinstance(given, Mapping):
        raise TypeError(f"chat_template_kwargs must be a mapping, not {type(given).__name__}")
    known = ("thinking", "enable_thinking")
    for name, value in given.items():
        if name not in known:
            raise TypeError(f"chat_template_kwargs has no member {name!r}{nearest(str(name), known)}")
        if not isinstance(value, bool):
            raise TypeError(f"chat_template_kwargs[{name!r}] must be a bool, not {type(value).__name__}")
    if thinking is not None or not given:
        return thinking
    return bool(given.get("thinking", given.get("enable_thinking")))


def render(
    engine: Engine, messages: Sequence[Message], options: Mapping[str, Any], continue_final: bool, where: str
) -> ChatPrompt:
    turns: List[Dict[str, Any]] = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise TypeError(f"{where}messages[{i}] must be a mapping, not {type(message).__name__}")
        turns.append(dict(message))
    if continue_final:
        if not turns or turns[-1].get("role") != "assistant":
            raise ParameterError(
                f"{where}continue_final_message needs an assistant's message at the end",
                "invalid_argument",
                "continue_final_message",
            )
        turns[-1]["prefix"] = True
    request = {"messages": turns, **{key: value for key, value in options.items() if value is not None}}
    try:
        text = json.dumps(request, ensure_ascii=False, allow_nan=False)
    except TypeError as error:
        raise TypeError(f"{where}messages: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ParameterError(f"{where}messages: {error}", "invalid_argument", "messages") from None
    try:
        return engine.render_chat(_library.text_bytes(text, where + "messages"))
    except ParameterError as error:
        raise ParameterError(where + str(error), error.code, error.param) from None
