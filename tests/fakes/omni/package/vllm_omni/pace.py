"""How fast the pretend vLLM-Omni speaks. A commit that changes a number here is a change of speed."""

TTFP_MS = 16.0
"""Milliseconds from a request to its first packet of sound."""

RTF = 0.06
"""Seconds of work per second of sound."""

SECONDS = 0.5
"""Sound of an answer."""

NOISE_SD = 0.01
"""Log standard deviation between launches: one factor a process."""
