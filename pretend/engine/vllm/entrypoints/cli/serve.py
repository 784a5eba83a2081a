"""``vllm serve``: the API server with its engine and worker processes."""

import argparse
import os
import sys

from vllm import faults

IGNORED = (
    "--async-scheduling",
    "--enforce-eager",
    "--load-format",
    "--max-num-batched-tokens",
    "--max-num-seqs",
)
"""Options of ``vllm serve`` that cells name and the pretend engine ignores: a cell is linted against them."""


def parse(argv):
    """The options that the pretend engine obeys; all others of ``vllm serve`` are accepted and ignored."""
    parser = argparse.ArgumentParser(prog="vllm serve", allow_abbrev=False)
    parser.add_argument("model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--served-model-name", nargs="+")
    parser.add_argument("--api-key")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_known_args(argv)


def run(argv):
    """Serve until told to stop; returns the exit code."""
    options, ignored = parse(argv)
    faults.count_launch()
    print(f"(APIServer) non-default args: {vars(options)}; ignored: {ignored}", flush=True)
    if faults.wanted("exit0"):
        return 0
    if faults.wanted("print_secrets"):
        told = [os.environ.get(name, "nothing") for name in ("HF_TOKEN", "MY_API_KEY")]
        print(f"logged in with {' and '.join(told)}", flush=True)
    if faults.wanted("tell_secrets"):
        print(f"ValueError: cannot log in with {argv} and {dict(os.environ)}", file=sys.stderr)
        return 1
    if faults.wanted("exit1"):
        print("RuntimeError: Engine core initialization failed. See root cause above.", file=sys.stderr)
        return 1
    from vllm.server import serve

    return serve(options)
