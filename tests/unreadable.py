"""Sentences that nobody can read: what is decided must not change with them."""

from __future__ import annotations

import pytest

from perfbisect.nightly import alerts

GIBBERISH = "xyzzy"


def make_unreadable(patch: pytest.MonkeyPatch) -> None:
    """Replaces every sentence about closed alerts by the same gibberish."""
    for name in ("_RECOVERED", "_RELAPSED", "_VANISHED"):
        patch.setattr(alerts, name, GIBBERISH)
