"""Waits for a job that was started with --detach, and prints its last state as JSON.

Usage: python3 poll.py JOB [EACH]      (EACH: how long one question waits, 10m where nothing is said)
Between questions a line of its state goes to standard error. Exit code: that of the job (1: it has none), or
that of a question that failed.
"""

import json
import subprocess
import sys


def main():
    """Asks until nobody works on the job any more; returns the exit code."""
    if len(sys.argv) not in (2, 3):
        sys.stderr.write(__doc__)
        return 2
    job, each = sys.argv[1], "".join(sys.argv[2:]) or "10m"
    while True:
        asked = ["perfbisect", "status", job, "--wait", "--timeout", each, "--json"]
        done = subprocess.run(asked, stdout=subprocess.PIPE, check=False)
        told = json.loads(done.stdout) if done.returncode == 0 else {}
        if told.get("state") != "running":
            break
        spent = f"{told['launched']} launches, {told['minutes']:.0f} of {told['budget']:.0f} minutes"
        sys.stderr.write(f"{spent}; expected: {json.dumps(told['expected'])}\n")
    sys.stdout.buffer.write(done.stdout)
    if done.returncode:
        return done.returncode
    return 1 if told["exit_code"] is None else told["exit_code"]


if __name__ == "__main__":
    sys.exit(main())
