"""What is there when a request comes in: repositories, cells, nightlies, and how they are called."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from perfbisect.resources import cells_folder
from perfbisect.setup.demo import AUTHOR
from tests.fakes.gitwriter import run_git
from tests.fakes.history import ENGINE, PretendHistory, make_history
from tests.fakes.omni.history import PACKAGE, make_omni_history
from tests.history_repo import history_repository
from tests.series.made import name_of, served, write
from tests.series.made_series import noise
from tests.shared import data

CALM = {"LAUNCH_SD": 0.005, "RUN_SD": 0.005, "OUTLIER_PROBABILITY": 0.0}
CELLS = Path(__file__).parents[2] / "pretend" / "cells"

MACHINE = """\
name: two
devices:
  command: ['{python}', -c, "print('0 pretend'); print('1 pretend')"]
  each: '^(?P<index>\\d+)\\s+(?P<name>\\S+)'
select:
  variable: PRETEND_VISIBLE_DEVICES
platform: cuda
"""
"""A machine with two devices."""


def text(folder: Path) -> Mapping[str, str]:
    """A history of the pretend vLLM with a slow commit, and the user's own cell of it."""
    history = make_history(folder / "vllm", commits=6, slow=4, factor=2.0, docs=(2,), pace=CALM)
    _ours(history)
    shutil.copytree(CELLS / "models", folder / "cells" / "models")
    cell = (CELLS / "pretend.yaml").read_text()
    (folder / "cells" / "chat_short.yaml").write_text(cell)
    (folder / "cells" / "chat_long.yaml").write_text(cell.replace("output_len: 8", "output_len: 32"))
    return _names(history) | {"MODEL": str(folder / "cells" / "models" / "pretend")}


def pulls(folder: Path) -> Mapping[str, str]:
    """The same with two pull requests: number 7 takes a shorter step, number 8 stops in the middle."""
    names = text(folder)
    repo = Path(names["REPO"])
    for number, file, old, new in (
        (7, "vllm/pace.py", "STEP_MS = 10.0000", "STEP_MS = 6.0000"),
        (8, "vllm/faults.py", 'FAULT = ""', 'FAULT = "short_outputs"'),
    ):
        source = (repo / file).read_text()
        assert old in source
        (repo / file).write_text(source.replace(old, new))
        name, mail = AUTHOR.rstrip(">").split(" <")
        who = ("-c", f"user.name={name}", "-c", f"user.email={mail}")
        run_git(repo, *who, "commit", "--quiet", "-m", f"[Perf] Fewer milliseconds (#{number})", file)
        run_git(repo, "update-ref", f"refs/pull/{number}/head", "HEAD")
        run_git(repo, "reset", "--quiet", "--hard", names["BAD"])
    return names


def omni(folder: Path) -> Mapping[str, str]:
    """A history of the pretend vLLM-Omni whose first sound comes late from a commit on, and two devices."""
    history = make_omni_history(folder / "vllm-omni", commits=7, slow=4, factor=2.2)
    (folder / "two.yaml").write_text(MACHINE.format(python=sys.executable))
    where = f"overlay:{sys.executable},package=vllm_omni,base=any"
    client = f"existing:{sys.executable},path={PACKAGE},package=vllm_omni"
    settings = f"env: {where}\nclient: {client}\nmachine: {folder / 'two.yaml'}\nbudget: 90m\n"
    (history.path / "perfbisect.yaml").write_text(settings)
    run_git(history.path, "tag", "v0.21.0rc1", history.good)
    return _names(history)


def nightlies(folder: Path) -> Mapping[str, str]:
    """Twenty nights of two servers; on the fourteenth one of them is asked without warm-ups."""
    for number, test in enumerate(("omni_chunk", "text_c")):
        values = noise(20 + number, 20, 400.0)
        for night, value in enumerate(values):
            cold = test == "omni_chunk" and night >= 13
            stem = name_of(test, at=f"202601{night + 1:02d}-190000").removesuffix(".json")
            document = served(
                date=f"202601{night + 1:02d}-190200", median_audio_ttfp_ms=value * (1.5 if cold else 1.0)
            )
            told = (
                f"vllm bench serve --model Some/Omni --dataset-name random --num-warmups {0 if cold else 8}"
            )
            build = folder / "results" / f"n{night:02d}"
            write(build / f"{stem}.json", document)
            write(build / f"{stem}.commands", {"client_command": told, "gpu_type": "Some GPU"})
    return {"RESULTS": str(folder / "results")}


def kanban(folder: Path) -> Mapping[str, str]:
    """The nightlies of vLLM-Omni in spring 2026 and the history that they ran. Skips where they are not."""
    results = data("kanban")
    history = history_repository(folder / "vllm-omni", newest="2026-04-16")
    return {
        "RESULTS": str(results),
        "REPO": str(history.path),
        "CULPRIT": history.sha("5d58abb1"),
    }


def nothing(_folder: Path) -> Mapping[str, str]:
    """The shipped cells alone."""
    return {"CELLS": str(cells_folder())}


def _ours(history: PretendHistory) -> None:
    """What the user's repository says of environments, as `perfbisect.yaml`."""
    settings = (
        f"env: overlay:{sys.executable},base=any\n"
        f"client: existing:{sys.executable},path={ENGINE}\n"
        "budget: 90m\n"
    )
    (history.path / "perfbisect.yaml").write_text(settings)


def _names(history: PretendHistory) -> dict[str, str]:
    return {
        "REPO": str(history.path),
        "GOOD": history.good,
        "BAD": history.bad,
        "CULPRIT": str(history.culprit),
    }


WORLDS: Mapping[str, Callable[[Path], Mapping[str, str]]] = {
    "text": text,
    "pulls": pulls,
    "omni": omni,
    "nightlies": nightlies,
    "kanban": kanban,
    "nothing": nothing,
}
