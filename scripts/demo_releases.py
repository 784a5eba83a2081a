"""`make demo-releases`: bisect real releases on the CPU, and say what was found, whatever it is.

Releases of vLLM, or with ``--package vllm-omni`` of vLLM-Omni, each over vLLM of its minor version. Leaves in
build/demo-releases/: state/ with the journal and every raw file, report.md, report.json. Nobody
knows the answer beforehand: exits 0 when there is a verdict (a release named, nothing slower, or that it
cannot be told within the budget), 1 when there is none.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from perfbisect.environments.factory import make_builder
from perfbisect.model.change import Change
from scripts import omni_cpu
from scripts.demo import CACHE, CELL, DAY, NAMED, PACKAGE, new_folder, run_perfbisect, say

OMNI = "vllm-omni"
ENDS = {PACKAGE: ("0.27.0", "0.32.0"), OMNI: ("0.28.0", "0.30.0")}
BUDGET = "75m"

VERDICTS = {0: "nothing got slower", NAMED: "a release is named", 4: "it cannot be told at this budget"}
"""Exit codes of a bisection that ended with a verdict."""


def prepare_omni(folder: Path, release: str) -> tuple[str, ...]:
    """Build the environment of a release, and with it the model; returns cell, metric and environments."""
    wheels = omni_cpu.write_wheels(folder)
    spec = f"release:{OMNI},with={' '.join(map(str, (omni_cpu.PLUGIN.parent, *wheels)))}"
    say(f"installing {OMNI}=={release} with its dependencies (about 3 GB, once)")
    builder = make_builder(spec, repository=None, cache=CACHE, exclude_newer=DAY)
    change = Change(f"{OMNI}=={release}", "release")
    omni_cpu.make_model(builder.ensure(change, log=folder / "install.log", timeout=3600.0).interpreter)
    # The time of the first packet is that of busy processors here.
    return (str(omni_cpu.CELL), "--metric", "audio_rtf", "--machine", "cpu", "--env", spec)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line as a user would; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--package", choices=ENDS, default=PACKAGE)
    parser.add_argument("--good")
    parser.add_argument("--bad")
    parser.add_argument("--budget", default=BUDGET)
    options = parser.parse_args(argv)
    good, bad = ENDS[options.package]
    good, bad = options.good or good, options.bad or bad
    folder = new_folder("demo-releases")
    arguments = prepare_omni(folder, bad) if options.package == OMNI else (CELL,)
    ends = ("--good", good, "--bad", bad, "--budget", options.budget)
    code, _ = run_perfbisect(
        folder, "bisect", *arguments, "--releases", options.package, *ends, "--exclude-newer", DAY
    )
    say(f"verdict: {VERDICTS[code]}" if code in VERDICTS else f"no verdict: exit code {code}")
    return 0 if code in VERDICTS else 1


if __name__ == "__main__":
    sys.exit(main())
