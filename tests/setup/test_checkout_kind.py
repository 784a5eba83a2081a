"""Which engine a checkout is, from texts of project files."""

from __future__ import annotations

import pytest

from perfbisect.setup.checkout import Project, parse_project

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
