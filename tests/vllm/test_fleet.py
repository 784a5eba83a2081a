"""One launch of the real vLLM through the agent, by a real Slurm."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts.demo_history import Demo
from tests.fleet.sites import SlurmSite
from tests.vllm.conftest import Answer
from tests.vllm.test_real import engines

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def cluster() -> Iterator[SlurmSite]:
    with tempfile.TemporaryDirectory(prefix="pb-") as folder:  # paths of sockets are short
        site = SlurmSite(Path(folder))
        site.make()
        site.use_real_agent()
        site.start()
        try:
            yield site
        finally:
            site.stop()


def test_a_launch_on_a_node(perfbisect: Callable[..., Answer], history: Demo, cluster: SlurmSite) -> None:
    fleet = f"slurm:nodes=fast,command={cluster.folder / 'agent'}"
    answer = perfbisect("run", "--at", history.commits[0], "--launches", "1", "--fleet", fleet)
    assert answer.code == 0, answer.document
    (launch,) = answer.document["launches"]
    assert (launch["outcome"], launch["slot"]) == ("measured", "fast")
    assert launch["change"]["id"] == history.commits[0]
    assert launch["warnings"] == []
    by_name = {metric["name"]: metric for metric in answer.document["metrics"]}
    tpot = next(metric for name, metric in by_name.items() if name in ("tpot", "tpot:median"))
    assert tpot["unit"] == "ms"
    assert 1.0 < tpot["median"] < 1000.0
    assert all(launch["seconds"][phase] > 0 for phase in ("launch", "first_request", "warm", "bench", "stop"))
    folder = Path(answer.document["folder"], launch["folder"])
    assert [path.name for path in folder.rglob("*.json") if '"itls"' in path.read_text()]
    assert len(list((answer.folder / "state" / "fleet" / "bundles").iterdir())) == 1
    assert engines(answer.folder) == []
    assert engines(cluster.folder / "shared") == []
