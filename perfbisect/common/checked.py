"""Types for text from a file that becomes part of a path, a command or a process's mark.

Used in the models of journals, bundles and manifests, so that such a value is checked where it enters.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from perfbisect.common.quantities import parse_minutes, parse_share, parse_size

# A token is part of a path: with "/../victim" in a journal, resume would delete a folder of the user.
_TOKEN = re.compile(r"[0-9a-f]{32}")
# Neither a dot nor a dash at the beginning: ".." leads out of the folder, and -x would be an option.
_NAME = re.compile(r"[^/.\x00-\x1f\x7f-][^/\x00-\x1f\x7f]*")
_UNSAFE_IN_ARGUMENT = re.compile(r"^-|[\x00-\x20\x7f]")


def is_token(text: str) -> bool:
    """Whether it is the token of a launch: 32 hex digits."""
    return _TOKEN.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Whether it is the name of a file or folder, without a path."""
    return _NAME.fullmatch(text) is not None


def require_inner_path(text: str) -> str:
    """A relative path that stays below its folder. :raises ValueError: it does not."""
    if not text or "\0" in text or text.startswith("/") or ".." in PurePosixPath(text).parts:
        raise ValueError(f"{text!r} is no path below the folder")
    return text


def require_argument(text: str) -> str:
    """Text that a command takes as one value. :raises ValueError: it could be read as an option."""
    if not text or _UNSAFE_IN_ARGUMENT.search(text):
        raise ValueError(f"{text!r} is no name: it is empty, begins with a dash, or has a blank")
    return text


def required(is_valid: Callable[[str], bool], what: str) -> AfterValidator:
    """Refuses text that is not valid: it is no ``what``."""

    def check(text: str) -> str:
        if not is_valid(text):
            raise ValueError(f"{text!r} is no {what}")
        return text

    return AfterValidator(check)


def _parsed(parse: Callable[[str], float]) -> BeforeValidator:
    """Read a number written as text."""

    def read(value: object) -> float:
        if not isinstance(value, str):
            raise ValueError(f"expected text (quote it), not {value!r}")
        return parse(value)

    return BeforeValidator(read)


Size = Annotated[float, _parsed(parse_size)]
"""Bytes, written as ``200G``."""
Minutes = Annotated[float, _parsed(parse_minutes)]
"""Written as ``3h`` or ``90m``."""
Share = Annotated[float, _parsed(parse_share)]
"""Written as ``5%``."""

Token = Annotated[str, required(lambda text: not text or is_token(text), "token: 32 hex digits, or empty")]
"""The token of a launch, or empty."""

FileName = Annotated[str, required(is_name, "name of a file")]
"""The name of a file or folder, without a path."""

InnerPath = Annotated[str, AfterValidator(require_inner_path)]
"""A relative path that stays below its folder."""

LARGEST = 1e15
"""The largest number that is taken from a file: sums and squares of such numbers stay finite."""

InnerPathOrNone = Annotated[str, AfterValidator(lambda text: text and require_inner_path(text))]
"""As :data:`InnerPath`, or empty."""

Quantity = Annotated[float, Field(allow_inf_nan=False, ge=-LARGEST, le=LARGEST)]

Seconds = Annotated[float, Field(allow_inf_nan=False, ge=0, le=1e10)]
"""Seconds or minutes of something that happened."""


def first_problem(error: ValidationError) -> str:
    """The first problem of values that do not fit: where, and what."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
