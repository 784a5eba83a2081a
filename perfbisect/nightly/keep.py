"""Keeps the wheel or image of a night's commit, for bisections between old nights."""

from __future__ import annotations

from pathlib import Path

from perfbisect.commands import setups
from perfbisect.commands.workspace import Workspace
from perfbisect.common.quantities import counted, moment
from perfbisect.environments.build import BuildRun
from perfbisect.environments.kept import KeepReason, KeptArtifact, KeptArtifacts, total_bytes
from perfbisect.jobs.plans import MeasurementConfig
from perfbisect.measure.executor import PhaseLimits
from perfbisect.nightly.model import Night
from perfbisect.nightly.night import StepResult


def keep_night(workspace: Workspace, setting: MeasurementConfig, size: float, night: Night) -> StepResult:
    """Keep what the night's commit needs of a registry, within ``size`` bytes of all that is kept.

    A night is good if all its cells were measured and no finding is there that made something worse.
    """
    if not any(cell.state in ("measured", "skipped") for cell in night.cells):
        return StepResult("nothing: no cell was measured")
    builder = setups.build_builder(workspace, setting)
    artifact = builder.artifact(night.commit)
    if artifact is None:
        return StepResult(f"nothing: {setting.environment} needs no wheel of a commit and no image")
    is_slower = any(one.counts and one.worse and one.change != "closed" for one in night.alerts)
    has_failed = any(cell.state == "failed" for cell in night.cells)
    why: KeepReason = "changed night" if is_slower or has_failed else "last good night"
    store, at = KeptArtifacts(workspace.cache), moment(night.began).timestamp()
    wanted = KeptArtifact(night.commit.id, builder.spec, at, why, night.name)
    build = BuildRun(Path(night.folder) / "keep.log", PhaseLimits().build)
    one, dropped = store.keep(artifact, wanted, build, size)
    kept = store.all()
    what = f"{night.commit.short} ({total_bytes([one]) / 1e6:.1f} MB, {one.why})"
    known = "" if one.kept_at == at else " was kept already"
    together = f"{counted(len(kept), 'commit')}, {total_bytes(kept) / 1e6:.1f} of {size / 1e6:.1f} MB"
    gone = f"; dropped {len(dropped)}" if dropped else ""
    return StepResult(f"{what}{known}; together {together}{gone}")
