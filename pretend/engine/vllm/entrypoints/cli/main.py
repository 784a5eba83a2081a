"""``python -m vllm.entrypoints.cli.main serve MODEL ... | bench serve ... | --version``."""

import sys

import vllm


def main(argv=None):
    """Dispatch the subcommand; returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] in (["--version"], ["-v"]):
        print(vllm.__version__)
        return 0
    if argv[:1] == ["serve"]:
        from .serve import run

        return run(argv[1:])
    if argv[:2] == ["bench", "serve"]:
        from .benchmark.serve import run

        return run(argv[2:])
    if argv[:1] == ["bench"]:
        from vllm.benchmarks.latency import run

        return run(argv[1], argv[2:])
    print("usage: vllm {serve,bench serve} ...", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
