"""Names the commit that made an LLM server slower: measured, with its probability."""

__version__ = "0.1.0"
