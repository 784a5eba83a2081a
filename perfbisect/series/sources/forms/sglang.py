"""Results of SGLang's ``bench_serving``, one a line; they say neither time nor model."""

from __future__ import annotations

from dataclasses import replace

from perfbisect.cells.reports.results import sglang as reports
from perfbisect.clients.base import count, number
from perfbisect.series.points import ReportedResult
from perfbisect.series.sources.forms.base import Record, workload_of

_RENAMED = {
    "accept_length": "spec_decode_acceptance_length",
    "total_throughput": "total_token_throughput",
}


def takes(record: Record) -> bool:
    # A sweep of vLLM adds random_input_len to its results too.
    return record.keys() >= {*reports.KEYS, "total_output_tokens_retokenized"}


def split(record: Record) -> list[Record]:
    return [record]


def read(record: Record) -> ReportedResult[object]:
    values = {
        _RENAMED.get(name, name.replace("_e2e_latency_", "_e2el_")): value for name, value in record.items()
    }
    if "total_throughput" not in record:
        rates = [number(record, f"{side}_throughput") for side in ("input", "output")]
        values["total_token_throughput"] = sum(rates)
    # With --output-details there is an error, often empty, for each request; else none counts failed ones.
    errors = record.get("errors")
    failed = sum(map(bool, errors)) if isinstance(errors, list) else 0
    completed = count(record, "completed")
    values |= {"failed": failed, "num_prompts": completed + failed}
    dataset = str(record.get("dataset_name") or "random")
    sides = {"in": "input", "out": "output"}
    lengths = [
        f"{short}{length}"
        for short, side in sides.items()
        if dataset.startswith("random") and (length := record.get(f"random_{side}_len"))
    ]
    server = record.get("server_info") or {}
    model = str(server.get("model_path") or "")
    workload = replace(
        workload_of(reports.read({**record, "completed": completed + failed})),
        test=str(record.get("tag") or model.rpartition("/")[2]),
        model=model,
        dataset=dataset,
        lengths="-".join(lengths),
        backend=str(record["backend"]),
    )
    return ReportedResult(workload=workload, values=values, covariates={"client": "SGLang"})
