"""Exceptions. Each is a ValueError or a RuntimeError, so code that catches those needs no import from here.

A wrong type or an unknown name is a TypeError, as everywhere in Python.
"""

from __future__ import annotations

from typing import Optional

__all__ = ["ParameterError", "EngineError"]


class _Described:
    """What the library knows about a failure."""

    code: str
    """Short name of the kind of failure: "invalid_argument", "context_length_exceeded", "deadline", ..."""
    param: Optional[str]
    """Name of the parameter, field, tensor or option at fault."""


class ParameterError(_Described, ValueError):
    """What was asked for is not possible; `param` names the parameter."""

    def __init__(self, message: str, code: str = "invalid_argument", param: Optional[str] = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class EngineError(_Described, RuntimeError):
    """The work itself failed: a damaged checkpoint, a full disk, a deadline that passed, a closed engine."""

    def __init__(self, message: str, code: str = "internal", param: Optional[str] = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
