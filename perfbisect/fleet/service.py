"""What jobs need of a fleet."""

from __future__ import annotations

from functools import partial
from typing import Final

from perfbisect.commands.fleets import Fleets
from perfbisect.fleet.building import BuildMachines
from perfbisect.fleet.executor import FleetExecutor, end_bundles
from perfbisect.fleet.folders import FolderFleet
from perfbisect.fleet.specs import absolute_fleet, build_hosts, make_fleet

FLEETS: Final = Fleets(
    absolute=absolute_fleet,
    machines=lambda spec, state, devices, workers: make_fleet(spec, state).machines(
        devices=devices, workers=workers
    ),
    check_machines=lambda spec, state: make_fleet(spec, state).machines(checks=True),
    check_builders=lambda spec: FolderFleet(spec, partial(build_hosts, spec)).machines(checks=True),
    count_builders=lambda spec: len(build_hosts(spec)),
    make_site=lambda spec, setting, repository, cache: (
        BuildMachines(hosts, setting, repository, cache) if (hosts := build_hosts(spec)) else None
    ),
    make_executor=lambda state, job: FleetExecutor(make_fleet(job.setting.fleet, state), job),
    end_launches=lambda spec, state, tokens, grace: end_bundles(make_fleet(spec, state), tokens, grace),
)
