"""Unknown names are refused, and the nearest known one is named."""

from __future__ import annotations

import difflib
import functools
import inspect
from typing import Any, Callable, Dict, Iterable, Mapping, Optional, Tuple, TypeVar

Neutral = Mapping[str, Tuple[Tuple[Any, ...], str]]
"""Names of other programs: the values that ask for what is done anyway, and what to say of others."""

_Class = TypeVar("_Class", bound=type)


def nearest(name: str, known: Iterable[str]) -> str:
    """ "; did you mean 'x'?" or nothing."""
    found = difflib.get_close_matches(name, list(known), 1, 0.6)
    return f"; did you mean {found[0]!r}?" if found else ""


def drop_neutral(named: Mapping[str, Any], neutral: Neutral) -> Dict[str, Any]:
    """Without the names that ask for what is done anyway; other values of them are a TypeError."""
    kept = {}
    for name, value in named.items():
        if name not in neutral:
            kept[name] = value
            continue
        values, note = neutral[name]
        if not any(type(value) is type(allowed) and value == allowed for allowed in (*values, None)):
            raise TypeError(f"{name} can only be {' or '.join(map(repr, values)) or None}: {note}")
    return kept


def strict_names(what: str, neutral: Optional[Neutral] = None) -> Callable[[_Class], _Class]:
    """Decorator of a class: unknown keyword names of its constructor are a TypeError that names the nearest."""

    def decorate(cls: _Class) -> _Class:
        plain: Any = vars(cls)["__init__"]
        known = [name for name in inspect.signature(plain).parameters if name != "self"]

        @functools.wraps(plain)
        def construct(self: Any, *args: Any, **named: Any) -> None:
            named = drop_neutral(named, neutral or {})
            for name in named:
                if name not in known:
                    raise TypeError(f"{name!r} is not {what}{nearest(name, known)}")
            plain(self, *args, **named)

        cls.__init__ = construct  # type: ignore[misc]
        return cls

    return decorate
