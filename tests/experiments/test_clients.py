"""Comparisons of two clients, which load one server or two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfbisect.engine.experiment import run_experiment
from perfbisect.errors import Interrupted, MachineError
from perfbisect.experiments.compare import COMPARE, CompareResult
from perfbisect.experiments.measure import SidePlan
from perfbisect.jobs.folders import Job, Jobs
from perfbisect.measure.executor import AttemptRequest
from perfbisect.model.attempt import Provenance
from tests.experiments.factory import CHANGES, measured
from tests.jobs.world import Clock, Watch, World

OLD, NEW = "release:vllm,client=0.31.0", "release:vllm,client=0.32.0"
PACKAGES = {OLD: ["aiohttp==3.9", "vllm @ file:///x"], NEW: ["aiohttp==3.10", "uvloop==0.21"]}


@dataclass
class Loaded(World):
    """The new client takes ``factor`` times as long; ``versions`` of a client, if it is another one later."""

    versions: Callable[[AttemptRequest], str] = lambda request: request.client

    def provenance(self, request: AttemptRequest) -> Provenance:
        facts = {"instrument": {"version": request.client, "packages": PACKAGES.get(request.client)}}
        return replace(super().provenance(request), client_digest=self.versions(request), facts=facts)


def loaded(factor: float = 1.5, **world: Any) -> Loaded:
    return Loaded(CHANGES, None, tau=0.01, pace=lambda x: factor if x.client == NEW else 1.0, **world)


def clients(b: int = 0, old: str = OLD) -> dict[str, SidePlan]:
    """Both sides of one change, or of two, with a client each."""
    return {
        "a": SidePlan(typed="main", change=CHANGES[0], client=old),
        "b": SidePlan(typed="main", change=CHANGES[b], client=NEW),
    }


def test_two_clients_load_one_server(job: Job) -> None:
    world = loaded()
    result = measured(job, world, **clients())
    assert [(x.client, x.change) for x in world.requests[:4]] in (
        [(side, CHANGES[0]) for side in order] for order in ((OLD, NEW, NEW, OLD), (NEW, OLD, OLD, NEW))
    )
    assert (result.verdict, result.a.client, result.b.client) == ("regression", OLD, NEW)
    assert result.client_differences == (
        ("version", OLD, NEW),
        ("aiohttp", "3.9", "3.10"),
        ("vllm", "file:///x", "-"),
        ("uvloop", "-", "0.21"),
    )
    assert any("not the server: both load 000000000000" in text for text in result.summary)
    assert result.next == f"perfbisect report {job.id}", "no bisection of commits finds a client"
    assert CompareResult.model_validate_json(result.text()) == result


def test_the_effect_of_two_clients_and_two_servers_is_of_both(job: Job) -> None:
    result = measured(job, loaded(), **clients(b=1))
    assert any("so do the servers" in text for text in result.summary)
    assert result.next == f"perfbisect report {job.id}"


@settings(max_examples=10, deadline=None)
@given(cut=st.integers(1, 4), old=st.sampled_from([OLD, ""]))
def test_a_resumed_comparison_has_the_client_of_each_side(
    cut: int, old: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("clients")
    whole = loaded()
    told = measured(Jobs(folder / "whole").new(Clock()(), "abcd"), whole, **clients(old=old))
    job = Jobs(folder / "cut").new(Clock()(), "abcd")
    world = loaded(fault=lambda n, _: Interrupted("now") if n == cut else None)
    with pytest.raises(Interrupted):
        measured(job, world, **clients(old=old))
    again = loaded()
    with job.held():
        result = run_experiment(COMPARE, job, Watch().tools(again))
    made = [request.client for request in (*world.requests[: cut - 1], *again.requests)]
    assert made == [request.client for request in whole.requests]
    assert (result.verdict, result.a, result.b) == (told.verdict, told.a, told.b)


def test_a_client_that_changes_within_its_side_does_not_count(job: Job) -> None:
    world = loaded(versions=lambda x: x.client + ("" if x.id.endswith(("1", "2", "3")) else " later"))
    with pytest.raises(MachineError, match=r"client_digest was 'release:.*' and is 'release:.* later'"):
        measured(job, world, **clients())
