"""A reported workload: what a report says, and what it does not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from perfbisect.serving.eras import SERVER_SAMPLING

WORKLOAD_PARTS = ("model", "task", "deploy YAML", "dataset", "prompts", "load", "warm-ups")
"""The parts of a cell; a report without one of them does not determine the cell."""

_NO_OWNER = re.compile(
    r"models?|data|home|root|mnt|opt|tmp|var|workspace|weights?|checkpoints?|cache|hub|hf|huggingface|"
    r"nvme\d*|disk\d*|llms?"
)
"""Folders above a model that are no owner on a hub."""
_CACHED = re.compile(r"models--(?P<owner>[^/]+?)--(?P<name>[^/]+)(?:/|$)")

EngineName = Literal["", "vllm", "vllm_omni"]


@dataclass(frozen=True)
class ReportedWorkload:
    """A workload as far as a report determines it.

    ``fields``: fields of a cell; ``missing``: parts of :data:`WORKLOAD_PARTS` that it lacks; ``test``: name
    of the nightly test without ``test_``; ``time``: start of the run (``20260412-190115``, without zone);
    ``arguments``: of data set and client without a field; ``closed``: no other argument is set;
    ``serve_args``, ``env``: all options and environment variables of the server, None if unknown; ``unread``:
    what is set for the server and cannot be compared; ``engine``: package of the server, empty if unknown.

    ``unsaid``: fields and arguments that are set to what a shell would compute (``serve_args.dtype``).
    ``defaults``: fields that the client takes where the report is silent. ``likely``: fields that follow from
    measured values. ``notes``: what was understood otherwise than it stands there, or not at all.
    ``offline``: of a benchmark without a server what it measures (``latency``).
    ``releases``, ``commits``: what the report compares, the older first; commits in the report's order.
    ``judged``: those that it calls ``good`` or ``bad``, with an empty word where it calls one both.
    """

    fields: Mapping[str, object]
    missing: tuple[str, ...]
    test: str = ""
    time: str = ""
    arguments: Mapping[str, object] = field(default_factory=dict)
    closed: bool = False
    serve_args: Mapping[str, object] | None = None
    env: Mapping[str, str] | None = None
    unread: tuple[str, ...] = ()
    engine: EngineName = ""
    unsaid: tuple[str, ...] = ()
    defaults: tuple[str, ...] = ()
    likely: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    offline: str = ""
    releases: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()
    judged: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_silent_on_temperature(self) -> bool:
        """Whether its client takes the default temperature, which changed in an era."""
        said = "temperature" in self.arguments or "temperature" in self.unsaid
        # The sampling of a benchmark without a server is its own.
        return self.closed and not said and not self.offline

    @property
    def has_server_sampling(self) -> bool | None:
        """Whether a client of all its releases sends no temperature by default; None if that is unknown."""
        eras = {SERVER_SAMPLING.reached(version=release.removeprefix("v")) for release in self.releases}
        return eras.pop() if len(eras) == 1 else None


def hub_name(path: str) -> str:
    """The name on a hub that a model in a local folder most likely has; other names as they are."""
    if not path.startswith(("/", "./", "../", "~")):
        return path
    if found := _CACHED.search(path):
        return f"{found['owner']}/{found['name']}"
    *above, name = [part for part in path.split("/") if part not in ("", ".", "..", "~")] or [path]
    has_owner = above and not _NO_OWNER.fullmatch(above[-1].lower()) and len(above) > 1
    return f"{above[-1]}/{name}" if has_owner else name
