"""Eras of engines, clients and harnesses: commits at which options or measurements changed.

Clients of different digests are comparable within one era. Dates are commit dates in UTC.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Era:
    """A change of behaviour at a commit.

    ``date``: of the commit, UTC to the second (``2026-04-19T02:36:00``); ``version``: first release with it;
    ``touches``: patterns of metrics whose meaning changed (``audio_*``, ``tpot``).
    """

    date: str
    version: tuple[int, ...]
    change: str
    what: str
    touches: tuple[str, ...] = ("*",)

    def touched(self, metric: str) -> bool:
        """Whether the metric (``ttft``, without statistic) changed its meaning."""
        return any(fnmatchcase(metric, pattern) for pattern in self.touches)

    def reached(self, date: str = "", version: str = "") -> bool | None:
        """Whether a commit date (ISO 8601, UTC) or version is in the era; None if both are unknown.

        The date takes precedence: versions between releases are less precise.
        """
        if date:
            # Both in UTC and in one form: text sorts as time does.
            return date[:19] >= self.date
        found = re.match(r"\d+(\.\d+)*", version)
        return None if found is None else tuple(map(int, found[0].split("."))) >= self.version


OMNI_ERAS: tuple[Era, ...] = (
    Era(
        "2026-02-04T06:07:46",
        (0, 16),
        "117d9bd1, #1157",
        "RTF is the time to the last sound over its duration in seconds",
        ("audio_rtf", "audio_duration", "*_per_audio_s"),
    ),
    Era(
        "2026-04-08T11:00:53",
        (0, 20),
        "7e7efdd1, #2549",
        "input tokens count what images and sound become",
        ("input_tokens", "total_token_throughput"),
    ),
    Era(
        "2026-05-12T03:56:10",
        (0, 21),
        "ce621be2, #3438",
        "chat audio is joined without decoding, which had delayed the client",
    ),
    Era("2026-05-18T09:18:18", (0, 22), "990566ae, #3674", "speech has no TTFT; it was the TTFP", ("ttft",)),
    Era(
        "2026-06-17T02:31:48",
        (0, 24),
        "d8978522, #4461",
        "TPOT is the mean ITL; output tokens are the server's",
        ("tpot", "output_tokens", "output_throughput", "total_token_throughput", "e2el_per_token"),
    ),
    Era("2026-06-30T02:17:24", (0, 24), "11f6a0b7, #4679", "raw sound is asked for by name"),
)
"""``vllm bench serve --omni``."""

DIFFUSION_ERAS: tuple[Era, ...] = (
    Era(
        "2026-03-20T12:12:49", (0, 18), "ff254795, #1657", "a random data set; its requests are drawn by seed"
    ),
    Era("2026-03-26T16:26:59", (0, 18), "e3d178cd, #1897", "the benchmark's own mistakes are mended"),
    Era(
        "2026-05-21T09:18:02",
        (0, 22),
        "474710dd, #3693",
        "images are edited at /v1/images/edits, not by chat",
    ),
)
"""vLLM-Omni's ``diffusion_benchmark_serving.py``."""

NIGHTLY_ERAS: tuple[Era, ...] = (
    Era("2026-04-15T02:28:28", (0, 20), "a782ae47, #2789", "results carry the baseline", ()),
    Era("2026-05-18T13:25:37", (0, 22), "309e5c38, #3623", "two requests warm up; none did"),
    Era("2026-08-19T00:00:00", (0, 28), "480e10ba, #6356", "as many requests warm up as are sent at once"),
)
"""vLLM-Omni's nightly harness, for imported specifications and results; cells set their own warm-ups."""


SERVER_SAMPLING = Era(
    "2026-01-22T00:00:00",
    (0, 15),
    "098b2d66, #32723",
    "without --temperature the client sends none, and the server takes the model's; it sent 0",
    (),
)
"""``vllm bench serve``: what a command without ``--temperature`` means."""


def nightly_warmups(date: str, concurrency: int | None) -> int:
    """Warm-up requests that vLLM-Omni's harness sends; ``date``: of its commit, empty for the newest."""
    two, filled = NIGHTLY_ERAS[-2:]
    if two.reached(date) is False:
        return 0
    return 2 if concurrency is None or filled.reached(date) is False else max(2, concurrency)


OFFLINE_ERAS: tuple[Era, ...] = (
    Era("2025-04-14T00:00:00", (0, 8, 5), "#16508", "vllm bench latency and throughput are in the package"),
)
"""``vllm bench latency``, ``throughput`` and ``startup``: each change brings its own."""

ERAS: dict[str, tuple[Era, ...]] = {
    "omni_bench": OMNI_ERAS,
    "diffusion_bench": DIFFUSION_ERAS,
    "offline_bench": OFFLINE_ERAS,
}
"""Eras by client; without eras only clients of equal digest are comparable."""
