"""Whether first packets came late because the client or the API server waited for a processor. Pure."""

from __future__ import annotations

import math
from typing import Final

from perfbisect.machine.interference import InterferenceLimits
from perfbisect.model.attempt import RunResult

_WAITED: Final = 0.1
"""Share of a run in which tasks waited for a processor, below which nothing starved."""


def late_packets_reason(run: RunResult, limits: InterferenceLimits) -> str | None:
    """Why a run with sound must be discarded; None if it is valid, or the server gave no account.

    The server says when it had the first sound of each answer, the client when that came. What every answer
    pays in between (transport, buffers, an event loop that is busy in each request) belongs to the change;
    the fastest answers of both show it. Beyond that the client's median may be late by both spreads, and by
    the limit, a share of the server's median. A client that is not delayed has the server's spread, which is
    taken for both: the client's own has the delays in it that are looked for. More is reached only where more
    than half of the packets were late, by different times: the median is then no longer the engine's. Where
    tasks hardly waited for processors, by the kernel's account (pressure), nothing starved, and the delay is
    the change's as well.

    The limit is chosen between six launches of vLLM-Omni on two busy processors: four were late by 0 to 20 %
    beyond their fastest packet, two by more than 120 %, of which one had misled a bisection.
    """
    names = [f"{name}:{part}" for name in ("audio_ttfp", "audio_first_chunk") for part in ("median", "p0.01")]
    known = [run.values[name] for name in names if name in run.values]
    spread = run.spread.get(names[2])
    waited = run.facts.get("sampled", {}).get("pressure", {}).get("cpu.some", {}).get("mean")
    if limits.late_packets is None or spread is None or len(known) < len(names):
        return None
    client, client_least, server, server_least = known
    in_each = client_least - server_least
    late = client - server - in_each
    allowed = max(limits.late_packets, math.sqrt(2) * spread) * server
    if late <= allowed or (waited is not None and waited < _WAITED):
        return None
    return (
        f"the client or the API server waited for a processor: the median TTFP was {client:.1f} ms for the "
        f"client and {server:.1f} ms for the server; {in_each:.1f} ms of the difference are in every answer, "
        f"{late:.1f} ms are not (limit {allowed:.1f} ms)"
    )
