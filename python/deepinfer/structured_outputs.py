"""Structured output in the words of vLLM: what an answer must look like."""

from __future__ import annotations

import dataclasses
import json as json_module
import re
from typing import Any, Dict, Mapping, Optional, Sequence, Union

from ._names import nearest, strict_names
from .errors import ParameterError

__all__ = ["StructuredOutputsParams"]


@strict_names("a member of structured_outputs")
@dataclasses.dataclass
class StructuredOutputsParams:
    """One of these; the answer, behind the reasoning if there is one, follows it exactly."""

    json: Optional[Union[str, bool, Mapping[str, Any]]] = None
    """A JSON Schema, as text or mapping."""
    regex: Optional[str] = None
    """An expression that the whole answer matches."""
    choice: Optional[Sequence[str]] = None
    """The answer is one of these texts."""
    grammar: Optional[str] = None
    """GBNF."""
    json_object: Optional[bool] = None
    """Any JSON object."""

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        if self.json_object not in (None, True, False):
            raise TypeError(f"structured_outputs.json_object must be a bool, not {type(self.json_object).__name__}")
        if self.json is not None and not isinstance(self.json, (str, bool, Mapping)):
            raise TypeError(f"structured_outputs.json must be a str or a mapping, not {type(self.json).__name__}")
        for name in ("regex", "grammar"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise TypeError(f"structured_outputs.{name} must be a str, not {type(value).__name__}")
        if self.choice is not None:
            if isinstance(self.choice, (str, bytes, Mapping)) or not hasattr(self.choice, "__iter__"):
                raise TypeError(
                    f"structured_outputs.choice must be a sequence of str, not {type(self.choice).__name__}"
                )
            self.choice = list(self.choice)
            for i, text in enumerate(self.choice):
                if not isinstance(text, str):
                    raise TypeError(f"structured_outputs.choice[{i}] must be a str, not {type(text).__name__}")
        self._refuse_zeros()
        given = self._given()
        if len(given) != 1:
            names = [field.name for field in dataclasses.fields(self)]
            found = " and ".join(given) or "none"
            raise ParameterError(
                f"structured_outputs must have one of {', '.join(names)}; it has {found}",
                "invalid_argument",
                "structured_outputs",
            )
        if self.choice is not None and (not self.choice or not all(self.choice)):
            raise ParameterError(
                "structured_outputs.choice must not be empty, and no text of it either",
                "invalid_argument",
                "structured_outputs",
            )

    def _refuse_zeros(self) -> None:
        """A schema ends at its first zero character."""
        texts = {name: getattr(self, name) for name in ("json", "regex", "grammar")}
        texts.update({f"choice[{i}]": text for i, text in enumerate(self.choice or ())})
        for name, text in texts.items():
            if isinstance(text, str) and "\0" in text:
                raise ParameterError(
                    f"structured_outputs.{name} holds a zero character", "invalid_argument", "structured_outputs"
                )

    def _given(self) -> Dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            name: value
            for name, value in values.items()
            if value is not None and not (name == "json_object" and value is False)
        }

    def so_args(self, reasoning_end_token_id: Optional[int]) -> Dict[str, Any]:
        """For the engine. With an id the answer comes behind it, and has to come."""
        if self.json is not None:
            schema = self.json if isinstance(self.json, str) else json_module.dumps(self.json, ensure_ascii=False)
            args: Dict[str, Any] = {"schema_type": "json", "schema": schema}
        elif self.choice is not None:
            escaped = [re.sub(r"([\\.+*?()|\[\]{}^$/])", r"\\\1", text) for text in self.choice]
            args = {"schema_type": "regex", "schema": "|".join(escaped)}
        elif self.json_object:
            args = {"schema_type": "json_object"}
        elif self.regex is not None:
            args = {"schema_type": "regex", "schema": self.regex}
        else:
            args = {"schema_type": "gbnf", "schema": self.grammar}
        if reasoning_end_token_id is not None:
            args.update({"trigger_token_ids": [reasoning_end_token_id], "trigger_required": True})
        return args


def as_params(value: Any) -> StructuredOutputsParams:
    """From a StructuredOutputsParams, or a mapping with its members."""
    if isinstance(value, StructuredOutputsParams):
        value.validate()
        return value
    if not isinstance(value, Mapping):
        raise TypeError(
            f"structured_outputs must be StructuredOutputsParams or a mapping, not {type(value).__name__}"
        )
    known = [field.name for field in dataclasses.fields(StructuredOutputsParams)]
    for name in value:
        if name not in known:
            raise TypeError(f"structured_outputs has no member {name!r}{nearest(str(name), known)}")
    return StructuredOutputsParams(**value)
