"""A pretend vLLM: the command line, the processes and the HTTP of the real one, with no model behind them."""

from .faults import wanted

try:
    from ._version import __commit_id__, __version__
except ImportError:
    __version__ = "0.32.0+pretend"
    __commit_id__ = None

if wanted("import_error"):
    raise ImportError("pretend fault import_error")

__all__ = ["__commit_id__", "__version__"]
