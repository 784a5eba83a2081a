"""vLLM-Omni's client on a machine without a GPU: several commands in one process."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RUNNER = """
import contextlib, json, sys, traceback
from vllm_omni.entrypoints.cli.main import main
codes = []
for argv in json.load(sys.stdin):
    sys.argv = ["vllm", *argv]
    try:
        with contextlib.redirect_stdout(sys.stderr):
            main()
        codes.append(0)
    except SystemExit as ended:
        codes.append(ended.code)
    except Exception:
        traceback.print_exc()
        codes.append(1)
print(json.dumps(codes))
"""
"""The client's own entry point, once for each command: its imports take longer than a run."""


def run(interpreter: Path, commands: Sequence[Sequence[str]], env: Mapping[str, str], log: Path) -> list[int]:
    """Exit codes of commands as :meth:`perfbisect.clients.Client.command` gives them."""
    arguments = [list(command[2:]) for command in commands]
    assert all(command[:2] == ("-m", "vllm_omni.entrypoints.cli.main") for command in commands)
    with log.open("a") as errors:
        done = subprocess.run(
            [str(interpreter), "-c", RUNNER],
            input=json.dumps(arguments),
            stdout=subprocess.PIPE,
            stderr=errors,
            env=dict(env),
            text=True,
            check=True,
            timeout=900,
        )
    codes: list[int] = json.loads(done.stdout.splitlines()[-1])
    return codes


def result(path: Path) -> dict[str, Any]:
    """A result document."""
    document: dict[str, Any] = json.loads(path.read_text())
    return document
