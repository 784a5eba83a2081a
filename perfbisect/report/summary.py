"""A result in short, for a comment on a pull request and for the summary of a CI job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from perfbisect.common.quantities import counted, with_unit
from perfbisect.common.text import block, line
from perfbisect.errors import MachineError
from perfbisect.jobs.documents import MeasuredDocument, MetricDocument
from perfbisect.jobs.replay import Launch
from perfbisect.report.document import Command, Figure, Items, Paragraph, Report
from perfbisect.report.markdown import prose, table, text_markdown

MAX_COMMENT_BYTES = 65_000
"""GitHub accepts 65,536 characters in an issue or a comment."""

MAX_SUMMARY_BYTES = 1024 * 1024
"""GitHub drops the whole summary of a step if it is larger."""

MIN_SUMMARY_BYTES = 2048
"""Remaining room below which no summary is written."""

_TONES = {"good": "\N{LARGE GREEN CIRCLE}", "bad": "\N{LARGE RED CIRCLE}", "open": "\N{LARGE YELLOW CIRCLE}"}
_WIDTH = 48
"""Characters of the axis of a picture."""
_MOST_ROWS = 24
_LABEL = 24


def summary_markdown(report: Report, result: MeasuredDocument, link: str = "") -> str:
    """The verdict of a job, its launches as a picture, three numbers, the sentences and the next command.

    ``link``: the page of the CI job. Folders of the machine are left out.
    """
    tone = _TONES.get(report.verdict.tone, "")
    parts = [f"### {tone} {prose(report.heading)}".replace("  ", " ")]
    figures = [one for one in report.blocks if isinstance(one, Figure) and one.name == "by-commit"]
    names = {round(at): name for figure in figures for at, name in figure.plot.x.ticks}
    if picture := launch_picture(result.launches, result.metric, names):
        parts.append(block(picture, "text"))
    # What it is, how sure that is, what it took: the first two and the last.
    numbers = (*report.highlights[:2], *report.highlights[2:][-1:])
    if numbers:
        head = tuple(f"**{prose(number)}**" for number, _ in numbers)
        parts.append(table(head, [tuple(prose(text) for _, text in numbers)]))
    for part in report.blocks:
        if isinstance(part, Paragraph) and not part.quiet:
            text = text_markdown(part.text)
            parts.append("" if result.folder and result.folder in text else text)
        elif isinstance(part, Items):
            parts.append("\n".join(f"- {text_markdown(item)}" for item in part.items))
        elif isinstance(part, Command):
            parts.append(block(part.text, "sh"))
    parts.append(f"[The CI job]({link})" if link else "")
    return "\n\n".join(filter(None, parts)) + "\n"


def launch_picture(launches: Sequence[Launch], metric: MetricDocument, names: Mapping[int, str]) -> str:
    """Each change's launches on a line from the smallest value to the largest; empty without values.

    ``names``: position -> what it is called, by default its change. A digit is a number of launches there.
    """
    rows: dict[tuple[int, str], list[float]] = {}
    failed: dict[tuple[int, str], int] = {}
    for launch in launches:
        place = launch.position, launch.change.short
        if launch.value is not None:
            rows.setdefault(place, []).append(launch.value)
        elif launch.outcome == "failed":
            rows.setdefault(place, [])
            failed[place] = failed.get(place, 0) + 1
    values = [value for row in rows.values() for value in row]
    if not values:
        return ""
    low, high = min(values), max(values)
    # Those of the A/B and of the ends have the most launches; the order is the history's.
    kept = sorted(sorted(rows, key=lambda place: -len(rows[place]))[:_MOST_ROWS])
    labels = [line(names.get(position, short), _LABEL) for position, short in kept]
    width = max(map(len, labels))
    left, right = with_unit(low, metric.unit), with_unit(high, metric.unit)
    axis = f"{left}{right:>{max(1, _WIDTH - len(left))}}  {metric.name}, {metric.direction} is better"
    out = [f"{'':{width}}  {axis}"]
    for label, place in zip(labels, kept, strict=True):
        counts = [0] * _WIDTH
        for value in rows[place]:
            counts[round((value - low) / (high - low) * (_WIDTH - 1)) if high > low else _WIDTH // 2] += 1
        marks = "".join("." if not count else "o" if count == 1 else str(min(count, 9)) for count in counts)
        note = f"  {failed[place]} failed" if place in failed else ""
        out.append(f"{label:{width}}  {marks}{note}")
    if len(rows) > len(kept):
        out.append(f"{counted(len(rows) - len(kept), 'further change')} with fewer launches")
    return "\n".join(out)


def truncate(text: str, limit: int) -> str:
    """Drop the last lines of a text that exceeds ``limit`` UTF-8 bytes, with a note."""
    if len(text.encode()) <= limit:
        return text
    note = "\n\n(Truncated: the report is complete.)\n"
    left = limit - len(note)
    kept: list[str] = []
    for row in text.splitlines():
        left -= len(row.encode()) + 1
        if left < 0:
            break
        kept.append(row)
    return "\n".join(kept) + note


def append_summary(path: Path, text: str) -> bool:
    """Append to the summary file of a GitHub Actions step as far as its limit allows; False: it is full."""
    room = MAX_SUMMARY_BYTES - (path.stat().st_size if path.exists() else 0)
    if room < MIN_SUMMARY_BYTES:
        return False
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(truncate(text, room))
    except OSError as error:
        raise MachineError(
            f"the job summary cannot be written: {error.strerror or error}", where=path
        ) from error
    return True


def job_link(variables: Mapping[str, str]) -> str:
    """The page of the CI job that runs this; empty outside Buildkite and GitHub Actions."""
    if url := variables.get("BUILDKITE_BUILD_URL", ""):
        return url
    server, repository, run = (
        variables.get(f"GITHUB_{name}", "") for name in ("SERVER_URL", "REPOSITORY", "RUN_ID")
    )
    return f"{server}/{repository}/actions/runs/{run}" if server and repository and run else ""
