"""Bounds of a share from counts."""

from __future__ import annotations

import math


def most_of_none(of: int) -> float:
    """The largest share of which ``of`` trials without a hit leave a chance of 5 %: about 3 / ``of`` (Hanley
    and Lippman-Hand, *JAMA* 249, 1983). It may be looked at after every trial: to have had none by then one
    must have had none before.

    :raises ValueError: no trial.
    """
    if of < 1:
        raise ValueError(f"0 of {of} is no share")
    return -math.expm1(math.log(0.05) / of)
