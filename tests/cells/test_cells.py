"""Cell files: what they may say, and what is told where they cannot."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from perfbisect.cells.loading import (
    DATASET_KEYS,
    INTERNAL,
    MEANING,
    cell_schema,
    list_cells,
    load_cell,
    load_cells,
    pair_lists,
)
from perfbisect.common.yaml_source import Located, keys_of
from perfbisect.errors import LocatedError, UsageError
from perfbisect.model.cell import Cell
from perfbisect.resources import cells_folder

GOOD = """\
family: text
model: org/model
num_prompts: 20
max_concurrency: 4
random_input_len: 64
serve_args:
  max-model-len: 512
sampling:
  top_p: 0.9
extra_body: {a: 1}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, text: str = GOOD, name: str = "text_one.yaml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


class TestReading:
    def test_a_file_is_a_cell_named_after_it(self, here: Path) -> None:
        cell = load_cell(write(here))
        assert cell.name == "text_one"
        assert cell.dataset_args == {"random-input-len": 64}
        assert cell.headline == "tpot"
        assert cell.guards == ("failed", "output_tokens")

    def test_spellings_of_the_same_do_not_move_the_digest(self, here: Path) -> None:
        digest = load_cell(write(here)).digest
        for old, new in (
            ("num_prompts: 20", "num_prompts: 20.0"),
            ("num_prompts: 20", "num_prompts: 0x14"),
            ("extra_body: {a: 1}", "extra_body: '{\"a\": 1}'"),
            ("extra_body: {a: 1}", 'extra_body: |\n  {"a": 1.0}'),
            ("  max-model-len: 512", '  max_model_len: "512"'),
            ("serve_args:\n  max-model-len: 512", "serve_args: [--max-model-len, 512]"),
            ("random_input_len: 64", "dataset_args: {random-input-len: 64}"),
            ("num_prompts: 20", "num_prompts: [20]"),
            ("family: text", 'family: "text"\nrequest_rate: inf\nnum_warmups: 0'),
        ):
            assert old in GOOD
            assert load_cell(write(here, GOOD.replace(old, new))).digest == digest, new

    def test_paired_lists_make_one_cell_a_place(self, here: Path) -> None:
        ladder = GOOD.replace("num_prompts: 20", "num_prompts: [32, 512]").replace(
            "max_concurrency: 4", "max_concurrency: [1, 64]"
        )
        path = write(here, ladder)
        cells = load_cells(path)
        assert [cell.name for cell in cells] == ["text_one@c1-n32", "text_one@c64-n512"]
        assert [(cell.max_concurrency, cell.num_prompts) for cell in cells] == [(1, 32), (64, 512)]
        assert cells[0].digest != cells[1].digest
        assert load_cell(f"{path}@c64-n512") == cells[1]
        with pytest.raises(
            UsageError, match="holds 2 cells and one is needed: text_one@c1-n32, text_one@c64-n512"
        ):
            load_cell(path)
        with pytest.raises(UsageError, match="has no cell @c9; it has: text_one@c1-n32"):
            load_cell(f"{path}@c9")


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"max_concurrency": [1, 8], "num_prompts": 100}, ["@c1-n100", "@c8-n100"]),
        ({"max_concurrency": 4, "num_prompts": [10, 20]}, ["@c4-n10", "@c4-n20"]),
        ({"request_rate": [0.5, 2, 10.0], "num_prompts": 100}, ["@r0.5-n100", "@r2.0-n100", "@r10.0-n100"]),
        ({"max_concurrency": [1.0, "y z"], "num_prompts": 5}, ["@c1-n5", "@cx-n5"]),
        ({"request_rate": [1.0], "max_concurrency": 8, "num_prompts": 5}, ["@c8-r1.0-n5"]),
        ({"request_rate": "inf", "num_prompts": [5]}, ["@rinf-n5"]),
        (
            {"request_rate": [math.inf, 2.0], "max_concurrency": [1, 2], "num_prompts": 5},
            ["@c1-n5", "@c2-r2.0-n5"],
        ),
    ],
)
def test_the_suffix_names_the_place(document: dict[str, Any], expected: list[str]) -> None:
    assert list(pair_lists(Located(Path("x.yaml"), {}), document)) == expected


@pytest.mark.parametrize(
    ("document", "field", "said"),
    [
        (
            {"max_concurrency": [1, 2], "num_prompts": [1, 2, 3]},
            "max_concurrency",
            "has 2 values where num_prompts has 3",
        ),
        ({"num_prompts": []}, "num_prompts", "is an empty list"),
        ({"num_prompts": [5, 5], "max_concurrency": 1}, "num_prompts", "two cells the name @c1-n5"),
    ],
)
def test_lists_that_cannot_be_paired(document: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(LocatedError, match=said) as caught:
        pair_lists(Located(Path("x.yaml"), {}), document)
    assert caught.value.field == field


class TestLocalFolders:
    def cell(self, folder: Path, text: str = GOOD) -> Path:
        model = folder / "models" / "tiny"
        model.mkdir(parents=True, exist_ok=True)
        (model / "config.json").write_text("{}")
        (model / "sub").mkdir(exist_ok=True)
        (model / "sub" / "weights.bin").write_bytes(b"123")
        return write(folder, text.replace("org/model", "./models/tiny"))

    def test_the_content_makes_the_digest_not_the_place(self, tmp_path: Path) -> None:
        first = load_cell(self.cell(tmp_path / "a"))
        second = load_cell(self.cell(tmp_path / "elsewhere" / "b"))
        assert first.model == str(tmp_path / "a" / "models" / "tiny")
        assert first.revision.model is not None and first.revision.model.startswith("sha256:")
        assert first.digest == second.digest
        assert first.needs_no_hub

    @pytest.mark.parametrize("change", ["other bytes", "another file", "one less"])
    def test_other_content_is_another_workload(self, tmp_path: Path, change: str) -> None:
        path = self.cell(tmp_path)
        digest = load_cell(path).digest
        weights = tmp_path / "models" / "tiny" / "sub" / "weights.bin"
        if change == "other bytes":
            weights.write_bytes(b"124")
        elif change == "another file":
            (weights.parent / "more.bin").write_bytes(b"")
        else:
            weights.unlink()
        assert load_cell(path).digest != digest

    def test_a_data_set_beside_the_cell_is_its_content(self, tmp_path: Path) -> None:
        path = write(
            tmp_path, GOOD.replace("random_input_len: 64", "dataset_name: custom\ndataset_path: data.jsonl")
        )
        (tmp_path / "data.jsonl").write_text("{}\n")
        local = load_cell(path)
        assert local.dataset_path == str(tmp_path / "data.jsonl")
        (tmp_path / "data.jsonl").write_text("{} \n")
        assert load_cell(path).digest != local.digest

    @pytest.mark.parametrize(
        ("lines", "words"),
        [
            ("dataset_name: custom\ndataset_path: data.jsonl", "there is no "),
            ("dataset_name: sonnet\ndataset_path: benchmarks/sonnet.txt", "there is no "),
            ("dataset_name: sharegpt", "data set sharegpt has no requests of its own"),
            ("dataset_name: hf", "data set hf has no requests of its own"),
        ],
    )
    def test_a_data_set_that_is_missing_is_told(self, tmp_path: Path, lines: str, words: str) -> None:
        with pytest.raises(LocatedError) as error:
            load_cell(write(tmp_path, GOOD.replace("random_input_len: 64", lines)))
        assert error.value.field == "dataset_path"
        assert words in error.value.message

    def test_a_data_set_of_a_hub_is_its_name(self, tmp_path: Path) -> None:
        text = GOOD.replace("random_input_len: 64", "dataset_name: hf\ndataset_path: org/prompts")
        assert load_cell(write(tmp_path, text)).dataset_path == "org/prompts"

    def test_the_declared_content_must_be_the_one_that_is_there(self, tmp_path: Path) -> None:
        path = self.cell(tmp_path)
        found = load_cell(path).revision.model
        text = path.read_text()
        good = text + f"revision:\n  model: {found}\n"
        assert load_cell(write(tmp_path, good)).revision.model == found
        with pytest.raises(
            LocatedError, match=r"revision\.model: is 'sha256:00', but .* holds sha256:"
        ) as caught:
            load_cell(write(tmp_path, text + "revision:\n  model: sha256:00\n"))
        assert caught.value.line == len(text.splitlines()) + 2

    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(LocatedError, match=r"model: there is no .*models/gone") as caught:
            load_cell(write(tmp_path, GOOD.replace("org/model", "./models/gone")))
        assert caught.value.line == 2

    def test_an_empty_folder_is_no_model(self, tmp_path: Path) -> None:
        path = self.cell(tmp_path)
        shutil.rmtree(tmp_path / "models" / "tiny")
        (tmp_path / "models" / "tiny").mkdir()
        with pytest.raises(UsageError, match="holds no file"):
            load_cell(path)


class TestSearching:
    def test_cells_of_the_folder_hide_the_shipped(self, here: Path) -> None:
        assert list_cells()["text_cpu_llama100m"].parent == cells_folder()
        write(here / "cells", name="text_cpu_llama100m.yaml")
        write(here / "cells", name="text_mine.yml")
        own = {name for name, path in list_cells().items() if path.parent != cells_folder()}
        assert own == {"text_cpu_llama100m", "text_mine"}
        assert load_cell("text_cpu_llama100m").model == "org/model"
        assert load_cell("text_mine").name == "text_mine"

    @pytest.mark.usefixtures("here")
    def test_a_name_that_is_none_names_the_nearest(self) -> None:
        with pytest.raises(
            UsageError, match=r"no cell named 'text_cpu_lama100m'; nearest: text_cpu_llama100m"
        ):
            load_cell("text_cpu_lama100m")

    @pytest.mark.usefixtures("here")
    def test_a_path_that_is_none_is_told(self) -> None:
        with pytest.raises(UsageError, match=r"there is no cell file cells/none\.yaml"):
            load_cells("cells/none.yaml")


BAD = [
    ("num_promts: 3", 11, "num_promts", "unknown key; did you mean num_prompts", None),
    ("variant: fast", 11, "variant", "unknown key; did you mean variants?", None),
    ("zzz: 1", 11, "zzz", "unknown key", "... of 52 keys"),
    ("num_warmups: two", 11, "num_warmups", "expected a whole number, not 'two'", None),
    ("num_warmups: -1", 11, "num_warmups", "must be greater than or equal to 0, not -1", None),
    ("ignore_eos: yes", 11, "ignore_eos", "expected true or false, not 'yes'", None),
    ("description: 3", 11, "description", "expected text", None),
    ("client: wrk", 11, "client", "there is no client 'wrk'", "vllm_bench"),
    ("headline: tpott", 11, "headline", "nearest: tpot", None),
    ("headline: failed", 11, "headline", "failed is watched, not judged", None),
    ("headline: audio_rtf:p98", 11, "headline", "does not report audio_rtf:p98", None),
    ("guards:\n  - failed\n  - audio_rtf", 11, "guards", "does not report audio_rtf", None),
    (
        "variants:\n  a:\n    serve_arg: {}",
        13,
        "variants.a.serve_arg",
        "did you mean serve_args?",
        "deploy_yaml, env",
    ),
    ("variants:\n  a:\n    env:\n      X: true", 13, "variants.a.env", "quote it", None),
    ("deploy_yaml: a.yaml", 11, "deploy_yaml", "for families with stages", None),
    ("deploy_yaml:\n  file: gone.yaml", 12, "deploy_yaml.file", "cannot read", None),
    ("stage_overrides: '{'", 11, "stage_overrides", "no JSON", None),
    ("client:\n  args: {seed: 3}", 11, "client", "cannot set seed", None),
    ("client:\n  args: {}\ndataset_args: {seed: 3}", 13, "dataset_args", "cannot set seed", None),
    ("dataset_args:\n  random_input_len: 3", 5, "random_input_len", "stands in dataset_args as well", None),
    ("endpoint: v1", 11, "endpoint", "pattern", None),
]


@pytest.mark.parametrize(
    ("added", "line", "field", "said", "allowed"), BAD, ids=[row[0].split("\n")[0] for row in BAD]
)
def test_what_is_wrong_is_told_with_file_line_and_field(
    tmp_path: Path, added: str, line: int, field: str, said: str, allowed: str | None
) -> None:
    path = write(tmp_path, GOOD + added + "\n")
    with pytest.raises(LocatedError) as caught:
        load_cells(path)
    error = caught.value
    assert error.exit_code == 2
    assert (error.where, error.field) == (f"{path}:{line}", field)
    assert said in error.message
    if allowed:
        assert error.allowed is not None and allowed in error.allowed


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("family: text", "family: tekst", 1, "there is no family 'tekst' (allowed: text, pooling, "),
        ("family: text\n", "", 1, "family: is missing"),
        ("  top_p: 0.9", "  top_p: 9", 9, "sampling.top_p: must be less than or equal to 1, not 9"),
        ("  max-model-len: 512", "  port: 80", 6, "serve_args cannot set port"),
        ("num_prompts: 20", "num_prompts: [1, x]", 3, "num_prompts: expected a whole number, not 'x'"),
        ("num_prompts: 20", "num_prompts:\n  - 1\n  - x", 5, "num_prompts: expected a whole number, not 'x'"),
        (
            "max_concurrency: 4",
            "max_concurrency: [1, 2]\nrequest_rate: [1, 2, 3]",
            5,
            "has 3 values where max_concurrency has 2",
        ),
        (
            "num_prompts: 20",
            "num_prompts: 20\nnum_prompts: 21",
            4,
            "duplicate key 'num_prompts', first in line 3",
        ),
        ("top_p: 0.9", "temperature: null", 9, "sampling.temperature: null says neither"),
    ],
)
def test_what_is_wrong_inside_is_told_there(tmp_path: Path, old: str, new: str, line: int, said: str) -> None:
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new))
    with pytest.raises(LocatedError) as caught:
        load_cells(path)
    assert said in caught.value.message
    assert caught.value.where == f"{path}:{line}"


def test_what_the_server_tells_may_be_a_guard(tmp_path: Path) -> None:
    assert load_cell(write(tmp_path, GOOD + "guards: [prefix_cache_hit_rate]\n")).guards == (
        "prefix_cache_hit_rate",
    )
    assert load_cell(write(tmp_path, GOOD + "headline: kv_cache_tokens\n")).headline == "kv_cache_tokens"
    for headline, switch in (
        ("prefix_cache_hit_rate", "enable-prefix-caching: false"),
        ("compile_time", "enforce-eager: true"),
        ("spec_decode_acceptance_rate", "max-num-seqs: 4"),
        ("device_memory_end", "max-num-seqs: 4"),
    ):
        served = GOOD.replace("max-model-len: 512", switch)
        with pytest.raises(LocatedError, match=f"{headline} needs"):
            load_cell(write(tmp_path, served + f"headline: {headline}\n"))


@pytest.mark.parametrize(
    ("added", "said"),
    [
        (
            "num_warmups: x\nnum_promts: 3\nseed: y\n",
            [
                "num_promts: unknown key; did you mean num_prompts?",
                "  line 1: num_prompts: is missing",
                "  line 10: num_warmups: expected a whole number, not 'x'",
                "  line 12: seed: expected a whole number, not 'y'",
            ],
        ),
        (
            "num_prompts: [1, 2]\nmax_concurency: 4\nnum_warmups: [1]\n",
            [
                "max_concurency: unknown key; did you mean max_concurrency?",
                "  line 12: num_warmups: has 1 values where num_prompts has 2: paired lists are of one "
                "length",
            ],
        ),
        (
            "num_prompts: 1\nvariant: ''\nclient: wrk\ntokenizer: ./none\n",
            [
                "variant: unknown key; did you mean variants?",
                "  line 12: client: there is no client 'wrk' (allowed: vllm_bench, omni_bench, "
                "diffusion_bench, offline_bench, multi_turn_bench, sglang_bench)",
                "  line 13: tokenizer: there is no {}/none (allowed: a folder relative to this file, or a "
                "hub's name)",
            ],
        ),
    ],
)
def test_all_that_is_wrong_is_told_at_once(tmp_path: Path, added: str, said: list[str]) -> None:
    path = write(tmp_path, GOOD.replace("num_prompts: 20\n", "") + added)
    with pytest.raises(LocatedError) as caught:
        load_cells(path)
    assert caught.value.message.splitlines() == [row.format(tmp_path) for row in said]


@pytest.mark.parametrize(
    ("added", "field", "said"),
    [
        ('model: "./a\\0b"', None, "a text has a NUL character"),
        (f"model: ./{'m' * 256}", "model", "is no path: File name too long"),
        (f"dataset_path: ./{'m' * 5000}", "dataset_path", "is no path: File name too long"),
        ("tokenizer: ~nobody-of-this-name/x", "tokenizer", "is no path: Could not determine home"),
        (f"seed: {'9' * 5000}", None, "a number has 5000 characters, at most 100"),
        (f"extra_body: {{n: 0x{'f' * 5000}}}", None, "a number has 5002 characters"),
        (f"extra_body: '{{\"n\": {'[' * 3000}'", "extra_body", "nested deeper than 100 levels"),
        ("extra_body: '{\"n\": NaN}'", "extra_body", "NaN is no number"),
        ("ready_timeout: .inf", "ready_timeout", "must be a finite number, not inf"),
    ],
)
def test_what_no_system_can_have_is_located(tmp_path: Path, added: str, field: str | None, said: str) -> None:
    key = added.partition(":")[0]
    text = "".join(row for row in GOOD.splitlines(keepends=True) if not row.startswith(f"{key}:"))
    path = write(tmp_path, text + added + "\n")
    with pytest.raises(LocatedError, match=said) as caught:
        load_cells(path)
    assert caught.value.field == field
    assert caught.value.line == len(text.splitlines()) + 1


def test_a_name_that_no_file_can_have_is_no_cell() -> None:
    for name in ("x" * 300, "a\0b", "x" * 300 + "@c1"):
        with pytest.raises(UsageError, match="there is no cell named"):
            load_cells(name)


def test_a_pinned_deploy_yaml_is_read_through_the_repository(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + "variants:\n  v:\n    deploy_yaml: {at: abc123, path: d.yaml}\n")
    asked: list[tuple[str, str]] = []

    def read_at(commit: str, place: str) -> str:
        asked.append((commit, place))
        return "stages: []\n"

    deploy = load_cell(path, read_at=read_at).variants["v"].deploy_yaml
    assert deploy is not None and deploy.text == "stages: []\n"
    assert asked == [("abc123", "d.yaml")]
    unread = load_cell(path).variants["v"].deploy_yaml
    assert unread is not None and unread.text is None


def test_a_deploy_yaml_beside_the_cell_is_read(tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text("stages: []\n")
    path = write(tmp_path, GOOD + "variants:\n  v:\n    deploy_yaml: {file: d.yaml}\n")
    deploy = load_cell(path).variants["v"].deploy_yaml
    assert deploy is not None and (deploy.text, deploy.file) == ("stages: []\n", str(tmp_path / "d.yaml"))


def test_the_schema_has_exactly_the_keys_that_may_be_written() -> None:
    schema = cell_schema()
    assert set(schema["properties"]) == {*keys_of(Cell), *DATASET_KEYS} - set(INTERNAL)
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["family", "model", "num_prompts"]
    json.dumps(schema, allow_nan=False)
    assert set(MEANING) == set(Cell.model_fields) - {"variant", "before_variant"}
    assert all(rule.get("description") for rule in schema["properties"].values())


def test_paired_lists_and_short_forms_are_in_the_schema() -> None:
    rules = cell_schema()["properties"]
    assert {rule.get("type") for rule in rules["num_prompts"]["anyOf"]} == {"integer", "array"}
    assert {"type": "string"} in rules["client"]["anyOf"]
    assert {"type": "string"} in rules["deploy_yaml"]["anyOf"]
    assert {"const": "server"} in rules["sampling"]["anyOf"]
    assert "string" in rules["extra_body"]["type"]
    assert "array" in rules["serve_args"]["type"]
