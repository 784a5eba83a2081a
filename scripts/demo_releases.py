"""`make demo-releases`: bisect real releases of vLLM on the CPU, and say what was found, whatever it is.

Leaves in build/demo-releases/: state/ with the journal and every raw file, report.md, report.json. Nobody
knows the answer beforehand: exits 0 when there is a verdict (a release named, nothing slower, or that it
cannot be told within the budget), 1 when there is none.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from scripts.demo import CELL, DAY, NAMED, PACKAGE, new_folder, run_perfbisect, say

GOOD, BAD = "0.27.0", "0.32.0"
BUDGET = "75m"

VERDICTS = {0: "nothing got slower", NAMED: "a release is named", 4: "it cannot be told at this budget"}
"""Exit codes of a bisection that ended with a verdict."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line as a user would; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--good", default=GOOD)
    parser.add_argument("--bad", default=BAD)
    parser.add_argument("--budget", default=BUDGET)
    options = parser.parse_args(argv)
    ends = ("--good", options.good, "--bad", options.bad, "--budget", options.budget)
    code, _ = run_perfbisect(
        new_folder("demo-releases"),
        *("bisect", CELL, "--releases", PACKAGE, *ends, "--exclude-newer", DAY),
    )
    say(f"verdict: {VERDICTS[code]}" if code in VERDICTS else f"no verdict: exit code {code}")
    return 0 if code in VERDICTS else 1


if __name__ == "__main__":
    sys.exit(main())
