"""Attempts of SGLang: a pretend server and client with the command lines and answers of the real ones."""

from __future__ import annotations

from pathlib import Path

from perfbisect.model.metric import parse_metric
from tests.measure.pretend import attempt, cell, environment, failure
from tests.serving.workloads import SGLANG as WORKLOAD

SGLANG = Path(__file__).parents[1] / "fakes" / "sglang"


def test_an_attempt_of_sglang(tmp_path: Path) -> None:
    """Caches are emptied between runs, and the client of its own package is digested."""
    engine = environment(tmp_path, PYTHONPATH=str(SGLANG))
    made = attempt(tmp_path, engine, runs=2, workload=cell(**WORKLOAD))
    assert made.failure is None
    assert [run.values["output_tokens"] for run in made.runs] == [6, 6]
    # A token takes 4 ms at least, and a pause of the machine makes it longer.
    assert made.value(parse_metric("tpot")) >= 4
    assert made.provenance.client_digest.startswith("sglang_bench ")
    assert (made.runs[0].facts["completed"], made.runs[0].values["failed"]) == (4, 0)
    log = (Path(made.folder) / "server.log").read_text()
    assert log.count("/flush_cache") == 2


def test_an_option_that_sglang_does_not_have_is_the_changes_failure(tmp_path: Path) -> None:
    engine = environment(tmp_path, PYTHONPATH=str(SGLANG))
    made = attempt(tmp_path, engine, workload=cell(**WORKLOAD, serve_args={"no-such": 1}))
    assert (failure(made).fault, failure(made).phase) == ("change", "launch")
    assert "--no-such" in failure(made).reason
