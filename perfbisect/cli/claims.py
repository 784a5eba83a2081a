"""Claims by name or file, and what the comparisons of their cells say of them together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from perfbisect.config.cells import load_cells
from perfbisect.config.claims import Claim, load_claim
from perfbisect.errors import MachineError, UsageError
from perfbisect.render.compare_documents import CompareDocument, VerifyDocument
from perfbisect.resources import cells_folder
from perfbisect.system.machine import machine


def find_claim(name: str) -> tuple[Path, Claim]:
    """A claim file, or one of those shipped by its name.

    :raises UsageError: there is none, or it is wrong.
    """
    path = Path(name)
    if not path.is_file():
        path = cells_folder() / "claims" / f"{name.removesuffix('.yaml')}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in path.parent.glob("*.yaml")))
        raise UsageError(f"no claim {name!r}: neither a file nor one of: {known}")
    return path, load_claim(path)


def cells_of(path: Path, claim: Claim) -> tuple[str, ...]:
    """The cells of a claim by name, every load of a ladder, if this machine can run them.

    :raises UsageError: a cell is not there, or is wrong.
    :raises MachineError: it needs devices that are not here.
    """
    names: list[str] = []
    here = len(machine(dict(os.environ)).gpus)
    for name in claim.cells_beside(path):
        cells = load_cells(name)
        most = max(cell.gpus for cell in cells)
        if most > here:
            needs = f"; it needs {claim.needs}" if claim.needs else ""
            raise MachineError(
                f"the claim cannot be run here: {name} needs {most} devices and there are {here}{needs}",
                where=path,
                next_step="run it on a machine with devices: perfbisect doctor shows those that are seen",
            )
        bare = name.partition("@")[0]
        suffixes = [cell.name.partition("@")[2] for cell in cells]
        names += [f"{bare}@{suffix}" if suffix else bare for suffix in suffixes]
    return tuple(names)


def verified(claim: Claim, told: Sequence[CompareDocument]) -> VerifyDocument:
    """It holds where it holds in every cell; one cell refutes it."""
    words = {one.claim for one in told}
    word = "refuted" if "refuted" in words else "holds" if words == {"holds"} else "inconclusive"
    return VerifyDocument.model_validate(
        {
            "claim": claim.claim,
            "source": claim.source,
            "expected": claim.expect.change,
            "metric": claim.expect.metric,
            "word": word,
            "cells": tuple(told),
        }
    )
