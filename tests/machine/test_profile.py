"""Machine files, and what is wrong in them with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.errors import LocatedError, UsageError
from perfbisect.machine.profile import load_machine, machine_names, machine_path

TEXT = r"""name: spyre
devices:
  command: [aiu-smi, -l]
  each: '^(?P<index>\d+) (?P<name>\S+)'
memory:
  command: aiu-smi
  each: '(?P<index>\d+): (?P<used>\d+)/(?P<total>\d+)'
tenants:
  command: [aiu-smi]
  each: '(?P<index>\d+) (?P<pid>\d+)'
select:
  variable: AIU_DEVICES
env:
  VLLM_PLUGINS: spyre
serve_args:
  max-num-seqs: 4
lease:
  command: [queue-run, '--gpus={gpus}', --]
  lost: [75, -15]
"""


def written(folder: Path, text: str) -> str:
    (folder / "machine.yaml").write_text(text)
    return str(folder / "machine.yaml")


def test_a_machine(tmp_path: Path) -> None:
    found = load_machine(written(tmp_path, TEXT))
    assert found.memory is not None
    assert found.memory.command == ("aiu-smi",)
    assert found.serve_args == {"max-num-seqs": 4}
    assert found.lease is not None
    assert found.lease.lost == (75, -15)


def test_those_that_are_shipped_are_right() -> None:
    assert machine_names() == ("ascend", "cpu", "cuda")
    for name in machine_names():
        assert load_machine(name).name == name
        assert machine_path(name).is_file()


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("name: spyre\n", "", 1, "name: is missing"),
        (r"(?P<name>\S+)'", r"\S+'", 2, "no group (?P<name>...)"),
        (r"'^(?P<index>\d+) (?P<name>\S+)'", r"'(?P<name>\S+)'", 2, "no group says which device"),
        (r"(?P<name>\S+)'", r"(?P<nam>\S+)'", 2, "unknown group 'nam'; known: uuid, index, chip, name"),
        (r"'^(?P<index>\d+) (?P", r"'^((?P<index>\d+) (?P", 2, "no regular expression"),
        (r"(?P<pid>\d+)'", r"\d+'", 8, "no group (?P<pid>...)"),
        ("variable: AIU_DEVICES", "variable: 1X", 12, "no name of a variable"),
        ("  max-num-seqs: 4", "  max-num-seqs: [4]", 16, "serve_args.max-num-seqs"),
        ("lost: [75, -15]", "lost: [x]", 19, "lease.lost"),
        ("env:", "envs:", 13, "envs"),
    ],
)
def test_mistakes(tmp_path: Path, old: str, new: str, line: int, said: str) -> None:
    with pytest.raises(LocatedError) as raised:
        load_machine(written(tmp_path, TEXT.replace(old, new, 1)))
    assert (said in str(raised.value), raised.value.line) == (True, line), str(raised.value)


def test_memory_of_a_driver_that_tells_it_itself(tmp_path: Path) -> None:
    text = "name: x\ndevices: none\ntenants:\n  command: [a]\n  each: '(?P<index>.)(?P<pid>.)'\n"
    with pytest.raises(LocatedError, match="belong to a command's devices, not 'none'"):
        load_machine(written(tmp_path, text))
    with pytest.raises(LocatedError, match="select is missing"):
        load_machine(written(tmp_path, "name: x\ndevices: nvidia-smi\n"))


def test_no_such_machine() -> None:
    with pytest.raises(UsageError, match="no machine 'asend': neither a file nor one of ascend, cpu, cuda"):
        load_machine("asend")
