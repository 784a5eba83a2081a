"""The launches of a night whose cells share servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from perfbisect.cli import plan_notes, wiring
from perfbisect.cli.desk import at_work, slots_for
from perfbisect.cli.finish import write_report
from perfbisect.cli.invocation import Measuring
from perfbisect.cli.nightly_hands import Alone, beginning
from perfbisect.cli.place import Place
from perfbisect.core.cell import Cell
from perfbisect.errors import Interrupted, PerfbisectError
from perfbisect.families.suite import suites
from perfbisect.jobs.nightly_hands import CellJob
from perfbisect.jobs.nightly_plan import NightPlan
from perfbisect.jobs.run_kind import RUN
from perfbisect.jobs.suite import suite


def together(cells: Sequence[Cell]) -> tuple[tuple[str, ...], ...]:
    """See :data:`perfbisect.jobs.nightly_plan.Together`: those that one server can serve."""
    return tuple(tuple(cell.name for cell in found) for found in suites(cells))


@dataclass(frozen=True)
class Suites:
    """See :class:`perfbisect.jobs.nightly_hands.Measure`: cells of a group share their server's starts."""

    here: Place
    measuring: Measuring

    def __call__(
        self, night: NightPlan, cells: Sequence[CellJob], launch: int
    ) -> Mapping[str, PerfbisectError]:
        group = next(names for names in night.groups if cells[0].plan.name in names)
        if len(group) == 1:
            return Alone(self.here, self.measuring)(night, cells, launch)
        try:
            return self._launched(night, group, cells, launch)
        except Interrupted:
            raise
        except PerfbisectError as error:
            return {one.plan.name: error for one in cells}

    def _launched(
        self, night: NightPlan, group: Sequence[str], cells: Sequence[CellJob], launch: int
    ) -> dict[str, PerfbisectError]:
        setting, first = night.setting, cells[0]
        slots = slots_for(first.plan.load(), 1, setting.machine)
        builder = wiring.builder_of(self.here, setting)
        told = plan_notes.slot_notes(slots)
        begins = [beginning(night, one, builder, (*told, _shared(one, group))) for one in cells]
        with ExitStack() as stack:
            for one, begin in zip(cells[1:], begins[1:], strict=True):
                stack.enter_context(one.job.held())
                begin()
            desk = stack.enter_context(at_work(first.job, slots, self.measuring, begin=begins[0]))
            limit = desk.tools(builder, None, setting).limits.build
            client = wiring.client_environment(
                self.here, setting, builder, night.commit, first.job.path / "client-build.log", limit
            )
            tools = desk.tools(builder, client, setting)
            outcomes = suite([one.job for one in cells], tools, until=launch)
            for outcome in outcomes:
                write_report(outcome.job, RUN, outcome.document)
        failed = {outcome.job.id: outcome.error for outcome in outcomes}
        return {one.plan.name: error for one in cells if (error := failed[one.job.id]) is not None}


def _shared(one: CellJob, group: Sequence[str]) -> str:
    others = ", ".join(name for name in group if name != one.plan.name)
    return f"the starts of its server are shared with {others}"
