"""Names the commit that made an LLM server slower: measured, with its probability.

The names below are those of :mod:`perfbisect.api`: jobs and series as DataFrames.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfbisect.api import Result, compare, detect, load, load_series

__version__ = "0.1.0"
__all__ = ["Result", "compare", "detect", "load", "load_series"]


def __getattr__(name: str) -> Any:
    # On first use: pandas comes with it, which no command needs.
    if name in __all__:
        return getattr(import_module(f"{__name__}.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
