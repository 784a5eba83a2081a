"""``vllm bench serve``: the options of the real client. One that the real client does not have is refused."""

import argparse
import sys

DATASETS = ("random", "sonnet", "sharegpt", "custom", "prefix_repetition", "hf")


def parser():
    """The options, with the real client's defaults where a result shows them."""
    options = argparse.ArgumentParser(prog="vllm bench serve", allow_abbrev=False)
    text = options.add_argument
    for name in (
        "base-url",
        "endpoint-type",
        "label",
        "model",
        "served-model-name",
        "tokenizer",
        "tokenizer-mode",
        "dataset-path",
        "goodput",
        "lora-modules",
        "request-id-prefix",
        "result-dir",
        "result-filename",
        "hf-name",
        "hf-subset",
        "hf-split",
        "extra-body",
        "header",
        "top-p",
        "top-k",
        "min-p",
        "frequency-penalty",
        "presence-penalty",
        "repetition-penalty",
        "ramp-up-strategy",
        "chat-template-kwargs",
    ):
        text(f"--{name}", nargs="*" if name in ("goodput", "header", "lora-modules") else None)
    text("--backend", default="openai")
    text("--host", default="127.0.0.1")
    text("--port", type=int, default=8000)
    text("--endpoint", default="/v1/completions")
    text("--dataset-name", choices=DATASETS, default="random")
    text("--num-prompts", type=int, default=1000)
    text("--num-warmups", type=int, default=0)
    text("--max-concurrency", type=int)
    text("--request-rate", type=float, default=float("inf"))
    text("--burstiness", type=float, default=1.0)
    text("--seed", type=int, default=0)
    text("--temperature", type=float)
    text("--percentile-metrics", default="ttft,tpot,itl")
    text("--metric-percentiles", default="99")
    text("--ready-check-timeout-sec", type=int, default=0)
    text("--metadata", nargs="*", default=[])
    for name, default in {
        "random-input-len": 1024,
        "random-output-len": 128,
        "random-prefix-len": 0,
        "random-batch-size": 1,
        "sharegpt-output-len": None,
        "hf-output-len": None,
        "custom-output-len": 256,
        "prefix-repetition-prefix-len": 256,
        "prefix-repetition-suffix-len": 256,
        "prefix-repetition-num-prefixes": 10,
        "prefix-repetition-output-len": 128,
        "sonnet-input-len": 550,
        "sonnet-output-len": 150,
        "sonnet-prefix-len": 200,
        "input-len": None,
        "output-len": None,
        "logprobs": None,
    }.items():
        text(f"--{name}", type=int, default=default)
    text("--random-range-ratio", default="0.0")
    for name in (
        "ignore-eos",
        "disable-tqdm",
        "save-result",
        "save-detailed",
        "append-result",
        "trust-remote-code",
        "disable-shuffle",
        "no-oversample",
        "use-beam-search",
        "profile",
        "insecure",
        "skip-chat-template",
        "skip-tokenizer-init",
        "no-stream",
    ):
        text(f"--{name}", action="store_true")
    return options


def run(argv):
    """Parse, measure, report; returns the exit code: 0 even if no request was completed."""
    options = parser().parse_args(argv)
    if options.dataset_name in ("sharegpt", "custom", "hf") and not options.dataset_path:
        print("ValueError: a dataset path is needed", file=sys.stderr)
        return 1
    from vllm.benchmarks.serve import measure

    return measure(options)
