"""``vllm bench serve``: the options of the real client. One that the real client does not have is refused."""

import argparse
import sys

DATASETS = ("random", "sonnet", "sharegpt", "custom", "prefix_repetition", "hf")
TEXTS = """
base-url endpoint-type label model served-model-name tokenizer tokenizer-mode dataset-path request-id-prefix
result-dir result-filename hf-name hf-subset hf-split extra-body top-p top-k min-p frequency-penalty
presence-penalty repetition-penalty ramp-up-strategy chat-template-kwargs
"""
LISTS = "goodput header lora-modules"
NUMBERS = """
random-input-len=1024 random-output-len=128 random-prefix-len=0 random-batch-size=1 custom-output-len=256
prefix-repetition-prefix-len=256 prefix-repetition-suffix-len=256 prefix-repetition-num-prefixes=10
prefix-repetition-output-len=128 sonnet-input-len=550 sonnet-output-len=150 sonnet-prefix-len=200
sharegpt-output-len= hf-output-len= input-len= output-len= logprobs=
"""
SWITCHES = """
ignore-eos disable-tqdm save-result save-detailed append-result trust-remote-code disable-shuffle
no-oversample use-beam-search profile insecure skip-chat-template skip-tokenizer-init no-stream
"""


def parser():
    """The options, with the real client's defaults where a result shows them."""
    options = argparse.ArgumentParser(prog="vllm bench serve", allow_abbrev=False)
    add = options.add_argument
    add("--backend", default="openai")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000)
    add("--endpoint", default="/v1/completions")
    add("--dataset-name", choices=DATASETS, default="random")
    add("--num-prompts", type=int, default=1000)
    add("--num-warmups", type=int, default=0)
    add("--max-concurrency", type=int)
    add("--request-rate", type=float, default=float("inf"))
    add("--burstiness", type=float, default=1.0)
    add("--seed", type=int, default=0)
    add("--temperature", type=float)
    add("--percentile-metrics", default="ttft,tpot,itl")
    add("--metric-percentiles", default="99")
    add("--ready-check-timeout-sec", type=int, default=0)
    add("--metadata", nargs="*", default=[])
    add("--random-range-ratio", default="0.0")
    for name in TEXTS.split():
        add(f"--{name}")
    for name in LISTS.split():
        add(f"--{name}", nargs="*")
    for name, _, default in (text.partition("=") for text in NUMBERS.split()):
        add(f"--{name}", type=int, default=int(default) if default else None)
    for name in SWITCHES.split():
        add(f"--{name}", action="store_true")
    return options


def run(argv):
    """Parse, measure, report; returns the exit code: 0 even if no request was completed."""
    options = parser().parse_args(argv)
    if options.dataset_name in ("sharegpt", "custom", "hf") and not options.dataset_path:
        print("ValueError: a dataset path is needed", file=sys.stderr)
        return 1
    from vllm.benchmarks.serve import measure

    return measure(options)
