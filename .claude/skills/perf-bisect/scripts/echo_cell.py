"""Which cell a report is of, and what that cell measures: to be shown before anything is measured.

Usage: python3 echo_cell.py REPORT_FILE     (- reads standard input)
Exit code: 0 one cell agrees with all that the report says; 4 none does, or several: ask.
"""

import json
import subprocess
import sys
from pathlib import Path


def main():
    """Shows the cells that agree, or the nearest with what differs; returns the exit code."""
    if len(sys.argv) != 2:
        sys.stderr.write(__doc__)
        return 2
    report = sys.stdin.read() if sys.argv[1] == "-" else Path(sys.argv[1]).read_text(encoding="utf-8")
    asked = ["perfbisect", "cells", "match", report, "--json"]
    done = subprocess.run(asked, stdout=subprocess.PIPE, check=False)
    if done.returncode not in (0, 4):
        sys.stdout.buffer.write(done.stdout)
        return done.returncode
    found = json.loads(done.stdout)
    for cell in found["cells"]:
        agrees = "agrees with all that is said" if found["exact"] else "agrees with all that was read"
        print(f"{cell['cell']}: {'differs' if cell['differences'] else agrees}", flush=True)
        for row in cell["differences"]:
            print(f"  {row['field']}: {row['left']} in the report, {row['right']} in the cell", flush=True)
        if found["exact"]:
            subprocess.run(["perfbisect", "cells", "show", cell["cell"]], check=True)
    if found["unread"]:
        print("set for the server, not compared: " + ", ".join(found["unread"]))
    if found["missing"]:
        print("not said: " + ", ".join(found["missing"]))
    return 0 if found["exact"] and len(found["cells"]) == 1 else 4


if __name__ == "__main__":
    sys.exit(main())
