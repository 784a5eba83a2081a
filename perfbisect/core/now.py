"""What is known of a change on the last night: a word alone, so that documents need nothing that computes."""

from __future__ import annotations

from typing import Literal

Now = Literal[
    "recovered", "not measured since", "other requests since", "still there", "at another level since"
]
"""``other requests since``: nobody can say."""
