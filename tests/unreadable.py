"""Sentences that nobody can read: what is decided must not change with them."""

from __future__ import annotations

import pytest

from perfbisect.nightly import alerts

GIBBERISH = "xyzzy"


def make_unreadable(patch: pytest.MonkeyPatch) -> None:
    """Replaces every sentence about closed alerts by the same gibberish."""
    patch.setattr(alerts, "reason_text", lambda _kind, **_values: GIBBERISH)
