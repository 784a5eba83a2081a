"""An image made by a server, held against its cell's reference: real pixels, a server, a process."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from perfbisect.cells.loading import load_cell
from perfbisect.errors import Interrupted, LocatedError
from perfbisect.measure import bench, faults
from perfbisect.measure.executor import AttemptRequest, PhaseLimits
from perfbisect.measure.record import AttemptRecord
from perfbisect.model.attempt import RunResult
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.serving.families import FAMILIES, Endpoint
from perfbisect.serving.server import Server
from perfbisect.system import ports, processes
from tests.measure.pretend import environment
from tests.system.stand_ins import ENV

ROOT = Path(__file__).resolve().parent.parent.parent
PAINTED = (0x40, 0x80, 0xC0)
"""The one colour of every image of the pretend server, of 8 x 8 pixels."""

CELL = {
    "family": "diffusion",
    "model": "org/m",
    "task": "t2i",
    "client": "diffusion_bench",
    "backend": "vllm-omni",
    "num_prompts": 1,
    "headline": "latency",
    "guards": ["failed", "image_distance"],
    "dataset_args": {"width": 8, "height": 8},
}
Compared = Callable[..., tuple[AttemptRecord, list[tuple[str, dict[str, Any]]]]]


@pytest.fixture
def compared(tmp_path: Path) -> Iterator[Compared]:
    """Starts the server, compares with a reference of that colour and size, and hands out what came of it."""
    owned: list[processes.OwnedProcess] = []

    def run(
        colour: tuple[int, int, int] = PAINTED, size: int = 8, asked: bool = False, **told: object
    ) -> tuple[AttemptRecord, list[tuple[str, dict[str, Any]]]]:
        Image.new("RGB", (size, size), colour).save(tmp_path / "reference.png")
        reference = {"image": str(tmp_path / "reference.png"), "prompt": "A lighthouse", "body": {"seed": 7}}
        fields = {"name": "one", **CELL, "reference": reference, **told.pop("cell", {})}  # type: ignore[arg-type]
        cell = Cell.model_validate(fields)
        endpoint = Endpoint(ports.free_port(), "ours")
        argv = [sys.executable, "-m", "tests.fakes.omni.server", str(endpoint.port), "ours"]
        pace = json.dumps({"image_seconds": 0.01, **told})
        owned.append(
            processes.spawn(
                [*argv, pace], env=ENV, cwd=ROOT, log=tmp_path / "server.log", token=secrets.token_hex(8)
            )
        )
        server = Server(owned[-1], endpoint, FAMILIES["diffusion"].server(cell, endpoint))
        server.wait_named(20.0)
        request = AttemptRequest(
            "a1", cell, Change("c0ffee" + "0" * 34), 2, "run", tmp_path, PhaseLimits(first_request=20.0)
        )
        record = AttemptRecord(
            request, "token", faults.FaultClassifier(0, False), environment=environment(tmp_path)
        )
        record.runs += [RunResult(1, 1, {"latency:median": 2.0}), RunResult(2, 2, {"latency:median": 2.1})]
        sent: list[tuple[str, dict[str, Any]]] = []
        bench.check_image(
            record, server, ENV, lambda: asked, lambda kind, facts: sent.append((kind, dict(facts)))
        )
        return record, sent

    yield run
    for one in owned:
        processes.stop(one, 0.0)


@pytest.mark.parametrize(
    ("task", "endpoint"),
    [
        ("t2i", "/v1/chat/completions"),
        ("t2i", "/v1/images/generations"),
        ("i2i", "/v1/chat/completions"),
        ("i2i", "/v1/images/edits"),
    ],
)
@pytest.mark.parametrize(("more", "distance"), [(0, 0.0), (16, 16 / 255)])
def test_the_distance_is_the_mean_difference_of_the_pixels(
    compared: Compared, task: str, endpoint: str, more: int, distance: float
) -> None:
    red, green, blue = PAINTED
    record, sent = compared(
        (red + more, green - more, blue + more),
        cell={"backend": "openai", "endpoint": endpoint, "task": task},
    )
    assert [run.values["image_distance:median"] for run in record.runs] == pytest.approx([distance] * 2)
    assert record.facts["reference"]["distance"] == pytest.approx(distance)
    assert (record.request.folder / "reference-made.png").is_file()
    assert sent == []


def test_some_pixels_are_enough(compared: Compared) -> None:
    red, green, blue = PAINTED
    pixels = [{"at": [1, 2], "rgb": [red, green, blue]}, {"at": [7, 0], "rgb": [red + 16, green, blue]}]
    record, _ = compared(cell={"reference": {"pixels": pixels, "prompt": "A lighthouse"}})
    assert record.facts["reference"]["distance"] == pytest.approx(16 / 6 / 255)
    outside = [{"at": [8, 8], "rgb": [0, 0, 0]}]
    record, sent = compared(cell={"reference": {"pixels": outside, "prompt": "A lighthouse"}})
    assert "why_not" in record.facts["reference"] and sent


def test_an_image_to_edit_is_the_references_own() -> None:
    address = "https://example.invalid/x.jpg"
    pixels = [{"at": [0, 0], "rgb": [0, 0, 0]}]
    reference = {"pixels": pixels, "prompt": "Redder", "input": address}
    cell = Cell.model_validate({"name": "one", **CELL, "task": "i2i", "reference": reference})
    check = FAMILIES["diffusion"].server(cell, Endpoint(1, "ours")).image_check
    assert check is not None
    content = check.body["messages"][0]["content"]  # type: ignore[index]
    assert [part["type"] for part in content] == ["text", "image_url"]
    assert content[1]["image_url"]["url"] == address


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"size": 9}, "8 x 8 pixels, the reference 9 x 9"),
        ({"fail_every": 1}, "refused"),
    ],
)
def test_what_cannot_be_compared_is_said_and_the_measurement_stays(
    compared: Compared, told: dict[str, Any], why: str
) -> None:
    record, sent = compared(**told)
    assert why in record.facts["reference"]["why_not"]
    assert [kind for kind, _ in sent] == ["warning"]
    assert [dict(run.values) for run in record.runs] == [{"latency:median": 2.0}, {"latency:median": 2.1}]
    assert record.failure is None


def test_a_stop_is_a_stop(compared: Compared) -> None:
    with pytest.raises(Interrupted):
        compared(asked=True, image_seconds=5.0)


def cell_file(folder: Path, **fields: object) -> Path:
    path = folder / "one.yaml"
    path.write_text(
        json.dumps({**CELL, "reference": {"image": "./r.png", "prompt": "A lighthouse"}, **fields})
    )
    return path


def test_the_digest_has_the_image_by_its_content(tmp_path: Path) -> None:
    digests = []
    for folder, colour in (("a", PAINTED), ("b", PAINTED), ("c", (1, 2, 3))):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (8, 8), colour).save(tmp_path / folder / "r.png")
        digests.append(load_cell(cell_file(tmp_path / folder)).digest)
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "there is no .*r.png"),
        ({"guards": ["failed"]}, "image_distance among its guards"),
        ({"reference": {"image": __file__, "prompt": "x", "content": "sha256:0"}}, "holds sha256:"),
        ({"task": "t2v", "reference": {"image": __file__, "prompt": "x"}}, "this is t2v at"),
        (
            {"reference": {"image": __file__, "prompt": "x", "input": "https://example.invalid/"}},
            "this is t2i at /v1/chat/completions with an input",
        ),
        ({"reference": {"prompt": "x"}}, "image, or pixels of it, and not both"),
        (
            {"family": "text", "client": "vllm_bench", "reference": {"image": __file__, "prompt": "x"}},
            "makes no images|does not report",
        ),
    ],
)
def test_a_reference_that_cannot_be_held_against_is_refused(
    tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(LocatedError, match=said):
        load_cell(cell_file(tmp_path, **fields))
