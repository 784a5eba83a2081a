"""Claims: their files, the cells that this machine can run, and their verdict."""

from __future__ import annotations

import os
from pathlib import Path

from perfbisect.cells.loading import load_cells, metric_problems
from perfbisect.common.text import hint
from perfbisect.common.yaml_source import load, validate
from perfbisect.errors import LocatedError, MachineError, UsageError
from perfbisect.experiments.claims import Claim
from perfbisect.machine.profile import load_profile, machine
from perfbisect.measure.preparation import hub_repositories, missing_repositories
from perfbisect.resources import cells_folder


def find_claim(name: str) -> tuple[Path, Claim]:
    """A claim file, or one of those shipped by its name; a LocatedError says what is wrong in it."""
    path = Path(name)
    if not path.is_file():
        path = cells_folder() / "claims" / f"{name.removesuffix('.yaml')}.yaml"
    if not path.is_file():
        known = sorted(file.stem for file in path.parent.glob("*.yaml"))
        raise UsageError(
            f"no claim {name!r}: neither a file nor one of: {', '.join(known)}{hint(name, known)}",
            next_step="perfbisect verify with the path of a claim's file, or with one of these names",
        )
    return path, validate(load(path), Claim)


def claim_cells(path: Path, claim: Claim, profile: str, *, dry_run: bool = False) -> tuple[str, ...]:
    """The cells of a claim by name, every load of a ladder; ``dry_run``: also those that cannot run here."""
    names: list[str] = []
    judged = [("metric", claim.expect.metric), *(("guards", name) for name in claim.expect.guards)]
    needs = f"; it needs {claim.needs}" if claim.needs else ""
    devices = len(machine(dict(os.environ), load_profile(profile)).gpus)
    for name in claim.cells_beside(path):
        cells = load_cells(name)
        for cell in cells:
            for field, problem in metric_problems(cell, judged):
                line = load(path).line(("expect", field))
                raise LocatedError(problem, file=path, line=line, field=f"expect.{field}")
            if dry_run:
                continue
            if cell.gpus > devices:
                raise MachineError(
                    f"the claim cannot be run here: {cell.name} needs {cell.gpus} devices and there are "
                    f"{devices}{needs}",
                    where=path,
                    next_step="run it on a machine with devices: perfbisect doctor shows those that are seen",
                )
            # Found out now, not after the first build: with HF_HUB_OFFLINE nothing can be fetched.
            missing = missing_repositories(hub_repositories(cell), dict(os.environ))
            if missing:
                raise MachineError(
                    f"the claim cannot be run here: {cell.name} needs {', '.join(missing)}, which is not on "
                    f"this machine, and HF_HUB_OFFLINE forbids to fetch it{needs}",
                    where=path,
                    next_step="fetch it into HF_HOME, or unset HF_HUB_OFFLINE",
                )
        bare = name.partition("@")[0]
        suffixes = [cell.name.partition("@")[2] for cell in cells]
        names += [f"{bare}@{suffix}" if suffix else bare for suffix in suffixes]
    return tuple(names)
