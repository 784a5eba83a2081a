"""Results of the clients: bent, read as the bench reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from perfbisect.clients import CLIENTS
from perfbisect.common.json_text import parse_json
from perfbisect.errors import ClientError
from perfbisect.measure.attempt import from_dict, to_dict
from perfbisect.model.attempt import Attempt, Provenance, RunResult
from perfbisect.model.cell import Cell
from scripts.fuzz.mutate import bend_json, json_text
from tests.clients import test_diffusion_bench, test_omni_bench, test_vllm_bench
from tests.serving.workloads import CHAT, SPEECH, make_cell

_OMNI = {"client": "omni_bench", "guards": []}


def _samples() -> tuple[tuple[Cell, Mapping[str, Any]], ...]:
    text, paint = test_vllm_bench.cell(), test_diffusion_bench.cell()
    speech = make_cell({**SPEECH, **_OMNI, "headline": "audio_ttfp"})
    chat = make_cell({**CHAT, **_OMNI, "extra_body": {"modalities": ["text"]}, "headline": "e2el"})
    return (
        (text, test_vllm_bench.document()),
        (speech, test_omni_bench.document(speech)),
        (chat, test_omni_bench.document(chat)),
        (paint, test_diffusion_bench.document()),
    )


_SAMPLES = _samples()


def read_bent_result(random: Random, folder: Path) -> None:
    """Read one bent result; whatever is in it, it is a run that a journal can hold, or a ClientError."""
    cell, document = random.choice(_SAMPLES)
    text = json_text(random, bend_json(random, document))
    (folder / "result.json").write_text(text, "utf-8", "surrogatepass")
    try:
        found = parse_json((folder / "result.json").read_bytes())
    except ValueError:
        return  # what the bench turns into a ClientError
    if not isinstance(found, dict):
        return
    try:
        run = CLIENTS[cell.client.name].read(cell, found, index=1, seed=17)
    except ClientError:
        return
    check_kept(run)


def check_kept(run: RunResult) -> None:
    """:raises ValueError: the journal does not give the run back."""
    attempt = Attempt("a", "c", "run", Provenance("d", "m", "c"), (run,))
    if from_dict(to_dict(attempt)).runs[0].values != dict(run.values):
        raise ValueError("the journal holds another run")
