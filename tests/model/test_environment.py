"""What launches ran in, and how two of these differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfbisect.model.attempt import Provenance
from perfbisect.model.environment import differences, environment_of, portable_environment


def provenance(**changed: Any) -> Provenance:
    """Of a launch with a server ``pb-1`` in the environment ``key1``; ``changed`` facts come in its place."""
    facts: dict[str, Any] = {
        "model_name": "pb-1",
        "machine": {"host": "box", "gpus": [{"name": "H100", "driver": "580.1"}] * 2},
        "engine": {"key": "key1", "packages": ["torch==2.9", "triton==3.5", "-e file:///home/me/vllm"]},
        "server": {
            "argv": [
                "/envs/key1/bin/python",
                "-m",
                "vllm",
                "serve",
                "m",
                "--port",
                "1",
                "--eager",
                "--seed=0",
            ],
            "env": {"CACHE": "/envs/key1/cache", "TMPDIR": "/tmp/pb-1ab", "VLLM_A": "1"},
        },
        "torch": {"version": "2.9", "cuda": "13.0"},
        "instrument": {"version": "0.32"},
    }
    return Provenance("cell", "H100 x 2", "vllm_bench 0.32 ab", "0.32.0", facts=facts | changed)


def test_what_each_launch_has_of_its_own_is_no_difference() -> None:
    server = {
        "argv": ["/envs/key2/bin/python", "-m", "vllm", "serve", "m", "--port", "2", "--eager", "--seed=0"],
        "env": {"CACHE": "/envs/key2/cache", "TMPDIR": "/tmp/pb-2cd", "VLLM_A": "1"},
    }
    engine = {"key": "key2", "packages": provenance().facts["engine"]["packages"]}
    other = provenance(model_name="pb-2", server=server, engine=engine)
    assert differences(environment_of(provenance()), environment_of(other)) == ()


def test_packages_driver_flags_variables_and_client() -> None:
    other = replace(
        provenance(
            machine={"host": "box", "gpus": [{"name": "H100", "driver": "590.2"}]},
            engine={"packages": ["torch==2.9", "triton==3.6", "-e file:///home/me/vllm", "flashinfer==0.5"]},
            server={"argv": ["serve", "--seed=0", "--max-num-seqs", "64"], "env": {"VLLM_A": "2"}},
            instrument={"version": "0.33"},
        ),
        client_digest="vllm_bench 0.33 cd",
        engine_version="0.33.0",
    )
    assert differences(environment_of(provenance()), environment_of(other)) == (
        ("engine", "0.32.0", "0.33.0"),
        ("driver", "580.1", "590.2"),
        ("client", "0.32", "0.33"),
        ("client's sources", "vllm_bench 0.32 ab", "vllm_bench 0.33 cd"),
        ("package: triton", "3.5", "3.6"),
        ("flag: --eager", "set", "-"),
        ("variable: CACHE", "/envs/ENVIRONMENT/cache", "-"),
        ("variable: VLLM_A", "1", "2"),
        ("package: flashinfer", "-", "0.5"),
        ("flag: --max-num-seqs", "-", "64"),
    )


def test_what_was_not_recorded_is_no_difference() -> None:
    bare = Provenance("cell", "H100 x 2", "vllm_bench 0.32 ab", "0.32.0")
    assert differences(environment_of(provenance()), environment_of(bare)) == ()
    assert differences({"engine": "1"}, {"host": "box"}) is None
    assert differences({}, {}) is None


def test_a_file_that_is_handed_on_has_no_paths_and_no_command_lines() -> None:
    portable = portable_environment(provenance())
    assert portable["package: triton"] == "3.5" and portable["driver"] == "580.1"
    assert not [name for name, value in portable.items() if "/" in name + value or "flag" in name]
    recorded = provenance()
    kept = replace(recorded, facts={"environment": portable})
    assert differences(environment_of(recorded), environment_of(kept)) == ()
