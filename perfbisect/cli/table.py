"""The commands: name, panel of the help, short help, and where the request is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import click

from perfbisect.cli.verbs import Verb, Verbs
from perfbisect.commands.wings import JOBS, MEASURE, PANELS, SERIES, SET_UP, GroupRow, Row, wings

GROUPS: Final[tuple[GroupRow, ...]] = (
    ("track", SERIES, "What the nightly series say.",
     "What the nightly series say: results made elsewhere, brought in and read.",
     "track ingest vllm-omni-kanban"),
    ("cells", SET_UP, "List, show, check and compare cells.",
     "List, show, check and compare cells: the workloads that can be measured.",
     "cells list"),
    ("changes", SET_UP, "What a revision stands for.",
     "What a revision stands for.",
     "changes show HEAD --repo vllm-omni"),
    ("env", SET_UP, "List, build, keep and remove environments.",
     "List, build, keep and remove environments: the interpreters in which changes run.",
     "env list"),
    ("skill", SET_UP, "The skill for coding agents.",
     "The skill for coding agents: how to ask perfbisect, and how to read what it says.",
     "skill install"),
)  # fmt: skip
"""Name, panel, short help, help and example of commands that have commands."""

COMMANDS: Final[tuple[Row, ...]] = (
    ("bisect", MEASURE, "Name the change that made a cell worse.", "cli.bisect:BisectRequest"),
    ("compare", MEASURE, "Is the second change slower, faster or the same?", "cli.compare:CompareRequest"),
    ("run", MEASURE, "Measure one change.", "cli.compare:RunRequest"),
    ("check", MEASURE, "For CI: is a commit worse by more than a limit?", "cli.compare:CheckRequest"),
    ("verify", MEASURE, "Does a claim hold?", "cli.compare:VerifyRequest"),
    ("status", JOBS, "The progress of a job.", "cli.jobs:status"),
    ("resume", JOBS, "Continue a job after an interruption.", "cli.jobs:ResumeRequest"),
    ("stop", JOBS, "Ask a job to stop.", "cli.jobs:stop"),
    ("report", JOBS, "The report of a job.", "cli.jobs:report"),
    ("track ingest", "", "Bring results in: folders, dashboards' files, Buildkite, our journals.",
     "cli.track:ingest"),
    ("track show", "", "The nights of a cell: date, build, value, change.", "cli.track:show"),
    ("track detect", "", "Change points, drifts, transients, instrument changes.", "cli.track:detect"),
    ("track suspects", "", "The ranked commits behind an alert, with the evidence.", "cli.alerts:suspects"),
    ("track reproduce", "", "Does this machine show an alert's step at all?",
     "cli.reproduce:ReproduceRequest"),
    ("track report", "", "The nightly report, in the nightlies' own table.", "cli.track:report"),
    ("track fixed", "", "Whether an alert is over, and what is left of it.", "cli.reproduce:FixedRequest"),
    ("track ack", "", "Somebody knows of an alert.", "cli.alerts:ack"),
    ("track close", "", "An alert is fixed or accepted.", "cli.alerts:close"),
    ("track reopen", "", "An alert is not settled after all.", "cli.alerts:reopen"),
    ("track rebaseline", "", "New baselines: old, 7-day mean, new, n, status.", "cli.track:rebaseline"),
    ("track export", "", "The series as CSV, JSON or Parquet, or for an action.", "cli.track:export"),
    ("track publish", "", "Our own launches in the kanban's file format.", "cli.track:publish"),
    ("demo", SET_UP, "Find a slow commit with a pretend server, in a minute.", "cli.bisect:demo"),
    ("init", SET_UP, "Write perfbisect.yaml for a checkout.", "cli.setup:init"),
    ("doctor", SET_UP, "Check this machine.", "cli.setup:doctor"),
    ("metrics", SET_UP, "Every metric that can be judged.", "cli.metrics:show"),
    ("cells list", "", "Every cell that can be named.", "cli.cells:list_known"),
    ("cells show", "", "What a cell measures.", "cli.cells:show"),
    ("cells validate", "", "Check cell files.", "cli.cells:validate"),
    ("cells diff", "", "Where two cells differ.", "cli.cells:diff"),
    ("cells match", "", "Which cell a bench command or a result file is of.", "cli.cell_reports:match"),
    ("cells from", "", "Write the cell of a report.", "cli.cell_reports:from_report"),
    ("cells lint", "", "Check cells against an engine's sources at a commit.", "cli.cells:lint_cells"),
    ("cells import", "", "Make cell files of nightly performance specifications.", "cli.cells:import_cells"),
    ("changes show", "", "The commit, and what it is built on.", "cli.changes:show"),
    ("env list", "", "Environments, and kept wheels and images.", "cli.env:list_kept"),
    ("env build", "", "Build the environment of one change.", "cli.env:build"),
    ("env keep", "", "Keep wheels and images for when a registry deletes them.", "cli.env:keep_artifacts"),
    ("env gc", "", "Remove environments that are not needed.", "cli.env:gc"),
    ("skill install", "", "Copy the skill to where agents read skills.", "cli.skill:install"),
    ("schema", SET_UP, "JSON Schemas of documents and cells.", "cli.schema:schema"),
)  # fmt: skip
"""Command, panel, short help, and where in perfbisect the function or the request is."""


def build_commands() -> list[click.Command]:
    """The commands of click, each once, in the order of the help."""
    group_rows = (*GROUPS, *(row for wing in wings() for row in wing.groups))
    rows = (*COMMANDS, *(row for wing in wings() for row in wing.commands))
    groups = {
        name: Verbs(name, short_help=short, help=f"{text}\n\n\b\nExample:\n  perfbisect {example}")
        for name, _, short, text, example in group_rows
    }
    top: list[click.Command] = []
    for path, panel, short, place in rows:
        group, _, name = path.rpartition(" ")
        verb = Verb(name, short, f"perfbisect.{place}", panel or "Commands")
        if group:
            groups[group].add_command(verb)
        else:
            top.append(verb)
    for name, panel, *_ in group_rows:
        groups[name].panel = panel
    return sorted((*top, *groups.values()), key=lambda one: PANELS.index(getattr(one, "panel", SET_UP)))


def verbs(commands: list[click.Command], prefix: str = "") -> Iterator[tuple[str, Verb]]:
    """Each command with its words."""
    for command in commands:
        path = f"{prefix} {command.name}".strip()
        if isinstance(command, Verb):
            yield path, command
        elif isinstance(command, click.Group):
            yield from verbs(list(command.commands.values()), path)
