"""Who reaches whom through imports: what no layer contract says."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ENTRY = "perfbisect.cli"
"""It starts every command, so its import of the command line is followed from nowhere."""

BISECTION = frozenset(
    {
        "perfbisect.bisect.decision.beliefs",
        "perfbisect.bisect.decision.decide",
        "perfbisect.bisect.decision.confirm",
        "perfbisect.bisect.decision.state",
        "perfbisect.bisect.decision.drift",
        "perfbisect.bisect.decision.endpoints",
        "perfbisect.bisect.decision.multi_step",
        "perfbisect.bisect.decision.noise",
        "perfbisect.bisect.decision.probe",
        "perfbisect.bisect.decision.model",
        "perfbisect.bisect.decision.posterior",
        "perfbisect.bisect.decision.search",
        "perfbisect.bisect.decision.outcome",
        "perfbisect.bisect.other_metric",
        "perfbisect.bisect.control_runs",
        "perfbisect.bisect.job",
        "perfbisect.bisect.kind",
        "perfbisect.bisect.plan",
        "perfbisect.bisect.documents",
        "perfbisect.bisect.forecast",
        "perfbisect.bisect.positions",
        "perfbisect.bisect.search_events",
        "perfbisect.bisect.report",
        "perfbisect.bisect.revert",
        "perfbisect.bisect.result",
        "perfbisect.bisect.figures",
        "perfbisect.bisect.summary",
    }
)
ENGINE = frozenset(
    {
        "perfbisect.jobs.plans",
        "perfbisect.jobs.kind",
        "perfbisect.jobs.replay",
        "perfbisect.jobs.runner",
        "perfbisect.jobs.workers",
        "perfbisect.jobs.retry",
        "perfbisect.jobs.sequential",
        "perfbisect.jobs.journal",
        "perfbisect.jobs.folders",
    }
)
KINDS = frozenset(
    {
        "perfbisect.compare.documents",
        "perfbisect.compare.job",
        "perfbisect.compare.plan",
        "perfbisect.compare.result",
        "perfbisect.compare.suite",
    }
)


@cache
def modules() -> Mapping[str, Path]:
    """Module -> file, packages by their own name."""
    paths = sorted((ROOT / "perfbisect").rglob("*.py"))
    dotted = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths)
    return {name.removesuffix(".__init__"): path for name, path in zip(dotted, paths, strict=True)}


def statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports of a module, in functions too, but those for type checkers alone."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        children: list[ast.AST] = list(node.orelse)
    else:
        children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node
    for child in children:
        yield from statements(child)


@cache
def imports(module: str) -> frozenset[str]:
    """The modules of ours that one imports."""
    found: set[str] = set()
    for statement in statements(ast.parse(modules()[module].read_text())):
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
        elif statement.module:
            names = {f"{statement.module}.{alias.name}" for alias in statement.names}
            found |= {name if name in modules() else statement.module for name in names}
    return frozenset(found & modules().keys())


def reached(*starts: str) -> set[str]:
    """The modules that are reached from these, themselves among them."""
    found, waiting = set(starts), list(starts)
    while waiting:
        module = waiting.pop()
        fresh = imports(module) - found if module != ENTRY else set()
        found |= fresh
        waiting += fresh
    return found


def test_the_lists_name_modules() -> None:
    named = BISECTION | ENGINE | KINDS
    assert named - modules().keys() == set()
    assert reached("perfbisect.cli.bisect") >= BISECTION, "or nothing below would show"


def test_run_reaches_no_bisection() -> None:
    assert reached("perfbisect.cli.run") & BISECTION == set()


def test_detection_reaches_no_environment_builder() -> None:
    builders = {name for name in modules() if name.startswith("perfbisect.environments.builders")}
    assert reached("perfbisect.cli.run") & builders
    assert reached("perfbisect.cli.reproduce") & builders
    assert reached("perfbisect.cli.track") & builders == set()


def test_the_engine_knows_no_kind_of_job() -> None:
    assert reached(*ENGINE) & (KINDS | BISECTION) == set()


@pytest.mark.parametrize("module", sorted(name for name in modules() if name.startswith(f"{ENTRY}.")))
def test_no_command_is_in_a_circle(module: str) -> None:
    assert module not in reached(*imports(module))
