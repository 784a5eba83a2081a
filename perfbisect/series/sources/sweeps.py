"""Results of ``vllm bench sweep serve``: a folder for each setting, a file for each run of its server."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from perfbisect.model.attempt import value_of_runs
from perfbisect.model.metric import parse_metric
from perfbisect.series.points import Point, Workload

SUMMARY = "summary.json"
"""The runs of a setting once more."""

# As vllm bench sweep serve names its folders, by the parameters that vary alone.
_FOLDER = re.compile(r"(?=SERVE--|BENCH--)(?:SERVE--(?P<serve>.+?))?(?:(?:^|-)BENCH--(?P<bench>.+))?")
_RUN = re.compile(r"run=\d+\.json")
_PARAMETER = re.compile(r"(?:^|-)(?P<name>[A-Za-z_][\w.]*)=(?P<value>.*?)(?=-[A-Za-z_][\w.]*=|$)")
_LOAD = frozenset({"max_concurrency", "num_prompts", "request_rate"})
"""Parameters of the client that a cell's name has anyway."""


@dataclass(frozen=True)
class SweepSetting:
    """A setting of the server and one of the client. ``folder``: the path of its runs."""

    folder: str
    serve: str = ""
    bench: str = ""

    @property
    def test(self) -> str:
        """What tells its cell from others of the same load: ``max_num_seqs=4``."""
        parameters = list(_PARAMETER.finditer(self.bench))
        named = [f"{found['name']}={found['value']}" for found in parameters if found["name"] not in _LOAD]
        return "-".join(filter(None, [self.serve, *(named if parameters else [self.bench])]))

    def run(self, point: Point) -> SweepRun:
        """A run of it: its cell is named by model and setting."""
        test = "-".join(filter(None, [point.workload.model.rpartition("/")[2], self.test]))
        # One server serves all settings of the client: they share one start.
        start = f"{point.build.key}/{self.folder.rpartition('/')[0]}/{self.serve}"
        return SweepRun(self, replace(point, workload=replace(point.workload, test=test), start=start))


@dataclass(frozen=True)
class SweepRun:
    """A run of a setting as a point of its own."""

    setting: SweepSetting
    point: Point


def sweep_setting(path: str) -> SweepSetting | None:
    """The setting of a run or a summary by its path; None of other files."""
    folder, _, name = path.rpartition("/")
    found = _FOLDER.fullmatch(folder.rpartition("/")[2])
    if found is None or not (name == SUMMARY or _RUN.fullmatch(name)):
        return None
    return SweepSetting(folder, found["serve"] or "", found["bench"] or "")


def merge_runs(runs: Iterable[SweepRun]) -> Iterator[Point]:
    """One point for each setting: the centre of its runs, as of the runs of a launch."""
    settings: dict[tuple[SweepSetting, Workload], list[Point]] = {}
    for run in runs:
        settings.setdefault((run.setting, run.point.workload), []).append(run.point)
    for points in settings.values():
        points.sort(key=lambda point: (point.began, point.raw))
        names = set.intersection(*(set(point.values) for point in points))
        yield replace(
            points[-1],
            began=points[0].began,
            values={
                name: value_of_runs(
                    [point.values[name] for point in points], absolute=parse_metric(name).metric.absolute
                )
                for name in sorted(names)
            },
            covariates={**points[-1].covariates, "runs": len(points)},
        )
