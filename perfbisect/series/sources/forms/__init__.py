"""Result files of other clients, each read as what it is; a form is one file here and its entry below.

A form has ``takes``, whether a record is one of it; ``split``, a record for each of its results; and
``read``, a result with its values by the names and in the units of ``vllm bench serve``. The workload is that
of the client's reader in ``cells/reports/results``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from perfbisect.series.sources.forms import aiperf, guidellm, sglang, vllm_offline

FORMS = (aiperf, guidellm, sglang, vllm_offline)


def form_of(record: object) -> ModuleType | None:
    """The form that a record has; None: none of other clients."""
    if not isinstance(record, Mapping):
        return None
    return next((form for form in FORMS if form.takes(record)), None)
