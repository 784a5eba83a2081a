"""A pretend SGLang: a server that decodes at a steady pace, and its client."""

__version__ = "0.5.0"

STEP_MS = 4.0
"""Milliseconds of a token."""
