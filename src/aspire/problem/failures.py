"""Errors of the user's own code: one sentence with the line that raised it.

The model, the loss, a Dataset and FILE.py are the user's. What they raise becomes a `Failed`, whose
sentence travels between processes with the whole traceback as text.
"""

from __future__ import annotations

import sysconfig
import traceback
from types import TracebackType
from typing import Any

import numpy as np
import torch

LONGEST = 300  # characters of an error's own words


def _folder(file: str) -> str:
    return file[: file.rindex("__init__")]


_OURS = _folder(__file__.replace("failures.py", "__init__.py"))
_TORCH = (_folder(torch.__file__), _folder(np.__file__), "<frozen ")
_PATHS = sysconfig.get_paths()
_PACKAGES = (_PATHS["purelib"], _PATHS["platlib"])
_PYTHON = (_PATHS["stdlib"], _PATHS["platstdlib"])


class Failed(ValueError):
    """The user's code raised; `trace` is the whole traceback as text."""

    def __init__(self, sentence: str, trace: str = "") -> None:
        super().__init__(sentence, trace)  # both are args, so that both are pickled

    def __str__(self) -> str:
        return str(self.args[0])

    @property
    def trace(self) -> str:
        return str(self.args[1])


class calling:
    """`with calling("the model"):` what is raised inside becomes Failed."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: Any
    ) -> None:
        if error is None or isinstance(error, Failed):
            return
        if isinstance(error, Exception | SystemExit):
            raise failed(self.what, error) from error


class at:
    """`with at("site 'a'"):` the sentence of a Failed inside begins with this place."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: Any
    ) -> None:
        if isinstance(error, Failed) and not str(error).startswith(self.where):
            raise Failed(f"{self.where}: {error}", error.trace) from error.__cause__


def failed(what: str, error: BaseException) -> Failed:
    """`what` raised this."""
    return Failed(f"{what} raised {told(error)}", trace_of(error))


def told(error: BaseException) -> str:
    """Its kind, its words, and the line of the user's that raised it."""
    if isinstance(error, Failed):
        return str(error)
    return f"{type(error).__name__}{_words(error)}{_place(error)}"


def trace_of(error: BaseException) -> str:
    """The whole traceback, of another process where it comes from there."""
    trace = error.trace if isinstance(error, Failed) else ""
    return trace or "".join(traceback.format_exception(error))


def _words(error: BaseException) -> str:
    try:
        text = " ".join(str(error).split())
    except Exception:
        return ""
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return f": {text}" if text else ""


def _place(error: BaseException) -> str:
    """The last line of the user's that it went through, if it went through any."""
    if isinstance(error, SyntaxError):
        return ""  # its words say where
    frame = _last_frame(error.__traceback__)
    return f" ({frame.filename}, line {frame.lineno}, in {frame.name})" if frame else ""


def _last_frame(trace: TracebackType | None) -> traceback.FrameSummary | None:
    """Packages that are installed count as the user's where nothing else does."""
    frames = traceback.extract_tb(trace)
    theirs = [f for f in frames if not f.filename.startswith((_OURS, *_TORCH))]
    own = [f for f in theirs if not f.filename.startswith(_PACKAGES + _PYTHON)]
    own = own or [f for f in theirs if f.filename.startswith(_PACKAGES)]
    return own[-1] if own else None
