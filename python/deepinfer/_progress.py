"""Progress of a batch: one line on stderr, only where a person sees it."""

from __future__ import annotations

import sys
import time
from typing import Any, Callable, Optional, Union

_INTERVAL = 0.1


class Progress:
    def __init__(self, title: str, unit: str, total: int, wanted: Union[bool, Callable[..., Any]]) -> None:
        self.title, self.unit, self.total, self.done, self.tokens = title, unit, total, 0, 0
        self.start = self.shown = time.monotonic()
        self.bar: Any = wanted(total=total, desc=title) if callable(wanted) else None
        self.stream = sys.stderr if wanted is True and _is_terminal(sys.stderr) else None
        self.width = 0

    def update(self, done: int, tokens: int = 0) -> None:
        """So many more are done, with so many tokens."""
        self.done += done
        self.tokens += tokens
        if self.bar is not None and done:
            self.bar.update(done)
        now = time.monotonic()
        if self.stream is not None and now - self.shown >= _INTERVAL:
            self.shown = now
            self._show(now)

    def _show(self, now: float) -> None:
        seconds = max(now - self.start, 1e-9)
        filled = 20 * self.done // max(1, self.total)
        line = f"{self.title} [{'#' * filled}{'.' * (20 - filled)}] {self.done}/{self.total} {self.unit}"
        if self.tokens:
            line += f", {self.tokens / seconds:.0f} tokens/s"
        if 0 < self.done < self.total:
            line += f", {seconds / self.done * (self.total - self.done):.0f} s left"
        self._write("\r" + line + " " * (self.width - len(line)))
        self.width = len(line)

    def _write(self, text: str) -> None:
        try:
            assert self.stream is not None
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):  # a terminal that went away is no reason to lose the work
            self.stream = None

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
        if self.stream is not None and self.width:
            self._show(time.monotonic())
            self._write("\n")


def _is_terminal(stream: Optional[Any]) -> bool:
    try:
        return stream is not None and bool(stream.isatty())
    except (AttributeError, ValueError):
        return False
