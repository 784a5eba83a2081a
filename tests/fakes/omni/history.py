"""A git repository whose ``vllm_omni/`` is the pretend vLLM-Omni, with one commit that is slower to speak."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.gitwriter import HistoryWriter
from tests.fakes.history import PretendHistory

PACKAGE = Path(__file__).parent / "package"
"""Put this on PYTHONPATH, and ``vllm_omni`` has the pretend client. Its server stands in histories only."""

FIRST = 1_779_051_600
"""Time of the first commit: 2026-05-17 21:00 UTC, when deploy YAMLs had the form that is read today."""


def omni_files() -> dict[str, bytes]:
    """Path in the repository -> content of the pretend vLLM-Omni's tree."""
    files = [path for path in sorted((PACKAGE / "vllm_omni").rglob("*")) if path.suffix in (".py", ".yaml")]
    tree = {path.relative_to(PACKAGE).as_posix(): path.read_bytes() for path in files}
    return tree | {"vllm_omni/server.py": (Path(__file__).parent / "server.py").read_bytes()}


def make_omni_history(path: Path, *, commits: int, slow: int, factor: float) -> PretendHistory:
    """Write a repository at ``path``, which must not exist; from position ``slow`` on the first sound takes
    ``factor`` times as long."""
    writer = HistoryWriter(path, first=FIRST)
    files = omni_files()
    pace = files["vllm_omni/pace.py"]
    writer.commit("[Perf] TTS high concurrency (#3662)", files)
    for position in range(1, commits):
        if position == slow:
            line = next(line for line in pace.splitlines() if line.startswith(b"TTFP_MS = "))
            ttfp = b"TTFP_MS = %.4f" % (float(line.rpartition(b"=")[2]) * factor)
            changes = {"vllm_omni/pace.py": pace.replace(line, ttfp)}
            writer.commit(f"[Refactor] Collect codec frames in one place (#{3700 + position})", changes)
        else:
            name = "vllm_omni/entrypoints/cli/main.py"
            files[name] += b"\n# Step %d.\n" % position
            writer.commit(f"Explain step {position} (#{3700 + position})", {name: files[name]})
    return PretendHistory(path, writer.finish(), slow)
