"""A pretend vLLM-Omni: its command line and its sound, with no model behind them."""

__version__ = "0.30.0+pretend"
