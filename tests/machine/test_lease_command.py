"""A kind of machine with a command in front of the server's, with arguments and variables of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.machine.profile import LaunchCommand, Profile
from tests.measure.pretend import Watch, attempt, cell


def wrapper(folder: Path, text: str) -> str:
    script = folder / "queue-run"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    return str(script)


def profile(command: str) -> Profile:
    return Profile(
        name="cuda",
        devices="none",
        env={"PRETEND_TOLD": "yes"},
        serve_args={"max-num-seqs": 7, "dtype": "half"},
        lease=LaunchCommand(command=(command, "{gpus}", "--")),
    )


def test_the_server_runs_behind_it(tmp_path: Path) -> None:
    asked = wrapper(tmp_path, f'echo "$@" > {tmp_path}/told; shift 2; "$@" & trap "kill $!" TERM; wait')
    watch = Watch()
    workload = cell(serve_args={"dtype": "float32"})
    made = attempt(tmp_path, workload=workload, watch=watch, profile=profile(asked))
    assert made.failure is None
    told = (tmp_path / "told").read_text()
    assert told.startswith("0 -- ")
    server = made.provenance.facts["server"]
    assert server["argv"][:3] == [asked, "0", "--"]
    words = list(server["argv"])
    assert words[words.index("--max-num-seqs") + 1] == "7"
    assert words[words.index("--dtype") + 1] == "float32", "the cell's own wins"
    assert server["env"]["PRETEND_TOLD"] == "yes"
    assert made.provenance.machine_class.endswith("cuda PRETEND_TOLD=yes dtype=half max-num-seqs=7")
    assert watch.left() == []


@pytest.mark.parametrize(("code", "fault", "said"), [(75, "machine", "the lease is lost"), (1, "change", "")])
def test_one_that_is_not_granted_is_the_machines(tmp_path: Path, code: int, fault: str, said: str) -> None:
    asked = wrapper(tmp_path, f"echo 'preempted by another job'; exit {code}")
    made = attempt(tmp_path, profile=profile(asked))
    assert made.failure is not None
    assert (made.failure.phase, made.failure.fault) == ("launch", fault)
    assert said in made.failure.reason


def test_one_that_is_taken_away_later(tmp_path: Path) -> None:
    """The wrapper ends its server and says so while the client measures."""
    asked = wrapper(
        tmp_path,
        f'shift 2; "$@" & child=$!; while [ ! -e {tmp_path}/stop ]; do sleep 0.05; done; kill $child; '
        "wait $child; exit 75",
    )
    watch = Watch(at={"warm": lambda _: (tmp_path / "stop").touch()})
    made = attempt(tmp_path, runs=3, watch=watch, profile=profile(asked), workload=cell(num_prompts=200))
    assert made.failure is not None
    assert (made.failure.fault, made.failure.reason[:17]) == ("machine", "the lease is lost"), made.failure
    assert watch.left() == []


def test_one_that_is_not_there(tmp_path: Path) -> None:
    made = attempt(tmp_path, profile=profile("/no/such/queue"))
    assert made.failure is not None
    assert made.failure.fault == "machine"
    assert "lease command '/no/such/queue' of machine 'cuda' is not installed" in made.failure.reason
