"""A command that answers like ``nvidia-smi`` on one of the machines in ``smi/``; see the README there."""

from __future__ import annotations

import csv
import os
import shlex
import sys
from pathlib import Path

MACHINES = Path(__file__).parent / "smi"
HERE = "CUDA_PRETEND_MACHINE"
"""Environment variable that tells the processes of pretend machines apart."""


def install(folder: Path, machine: Path) -> str:
    """Put the command into ``folder``; it answers from the files in ``machine``. Returns its path."""
    command = folder / "nvidia-smi"
    words = shlex.join([sys.executable, "-I", "-S", __file__, str(machine)])
    command.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    command.chmod(0o755)
    return str(command)


def _computing(gpus: str) -> str:
    """As ``processes.csv``: every process of this pretend machine that is restricted to its first device."""
    header, first, *_ = csv.reader(gpus.splitlines(), skipinitialspace=True)
    uuid = dict(zip(header, first, strict=True))["uuid"]
    rows = ["pid, gpu_uuid, used_memory"]
    wanted = {b"CUDA_VISIBLE_DEVICES=0", f"{HERE}={os.environ.get(HERE, '')}".encode()}
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted <= set(variables):
            rows.append(f"{path.parent.name}, {uuid}, 620")
    return "\n".join(rows)


def main(machine: Path, arguments: list[str]) -> int:
    error = machine / "error.txt"
    if error.exists():
        code, _, text = error.read_text("utf-8").partition("\n")
        sys.stdout.write(text)
        return int(code)
    option, _, fields = arguments[0].partition("=")
    if option in ("-L", "topo"):
        path = machine / ("list.txt" if option == "-L" else "topo.txt")
        sys.stdout.write(path.read_text("utf-8") if path.exists() else "")
        return 0
    names = {"--query-gpu": "gpu.csv", "--query-compute-apps": "processes.csv"}
    if arguments[1:2] != ["--format=csv,noheader,nounits"] or option not in names:
        return 1
    wanted = arguments[2].removeprefix("--id=").split(",") if arguments[2:] else None
    path = machine / names[option]
    text = path.read_text("utf-8") if path.exists() else _computing((machine / "gpu.csv").read_text("utf-8"))
    header, *lines = csv.reader(text.splitlines(), skipinitialspace=True)
    rows = [dict(zip(header, line, strict=True)) for line in lines]
    for name in fields.split(","):
        if name not in header:
            sys.stdout.write(f'Field "{name}" is not a valid field to query.\n\n')
            return 2
    for row in rows:
        if wanted is not None and row["uuid"] not in wanted:
            continue
        sys.stdout.write(", ".join(row[name] for name in fields.split(",")) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
