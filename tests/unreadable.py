"""Sentences that nobody can read: what is decided must not change with them."""

from __future__ import annotations

import pytest

from perfbisect.dashboard import collect
from perfbisect.nightly import alerts
from perfbisect.series import cause_text, detect

GIBBERISH = "xyzzy"


def make_unreadable(patch: pytest.MonkeyPatch) -> None:
    """Replaces every sentence about evidence, suppressed changes and closed alerts by the same gibberish."""
    patch.setattr(cause_text, "SENTENCES", dict.fromkeys(cause_text.SENTENCES, GIBBERISH))
    for module in (detect, collect):
        patch.setattr(module, "suppression_sentence", lambda _: GIBBERISH)
    for name in ("_RECOVERED", "_RELAPSED", "_VANISHED"):
        patch.setattr(alerts, name, GIBBERISH)
