"""Puts the folders that stand beside the package into it, so that a wheel finds them as a checkout does.

perfbisect/resources.py has the other end of this. Everything else is in pyproject.toml.
"""

from pathlib import Path

from setuptools import find_packages, setup

BESIDE = {
    "perfbisect._cells": "cells",
    "perfbisect._dashboards": "dashboards",
    "perfbisect._pretend": "pretend",
    "perfbisect._skill": ".claude/skills/perf-bisect",
}
ROOT = Path(__file__).resolve().parent

there = {
    name: folder
    for name, folder in BESIDE.items()
    if any(path.is_file() for path in (ROOT / folder).rglob("*"))
}
setup(
    packages=[*find_packages(include=["perfbisect", "perfbisect.*"]), *there],
    package_dir=there,
    package_data={
        "": ["templates/*", "vendor/*"],
        "perfbisect": ["py.typed"],
        "perfbisect.setup": ["*.template"],
        "perfbisect.series.suspects": ["*.yaml"],
    }
    | {
        name: sorted(
            path.relative_to(ROOT / folder).as_posix()
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and not path.name.startswith(".") and "__pycache__" not in path.parts
        )
        for name, folder in there.items()
    },
)
