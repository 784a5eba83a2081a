"""``python -m vllm_omni.entrypoints.cli.main serve MODEL --omni ... | bench serve --omni ...``."""

import argparse
import random
import sys

import vllm_omni


def main(argv=None):
    """Dispatch the subcommand; returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["serve"]:
        return serve(argv[1:])
    if argv[:2] == ["bench", "serve"]:
        from vllm_omni.benchmarks.serve import run

        return run(argv[2:])
    print(f"vllm-omni {vllm_omni.__version__}: {{serve,bench serve}} ...", file=sys.stderr)
    return 2


def serve(argv):
    """Serve until told to stop. All options of the real server are accepted, few are obeyed."""
    from vllm_omni import pace
    from vllm_omni.server import Handler, PretendOmni, Told

    parser = argparse.ArgumentParser(prog="vllm serve", allow_abbrev=False)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--served-model-name", default="pretend")
    parser.add_argument("--deploy-config", type=argparse.FileType())
    options, ignored = parser.parse_known_args(argv)
    print(f"(APIServer) non-default args: {vars(options)}; ignored: {ignored}", flush=True)
    # Small packets are sent at once: waiting for an acknowledgement would be counted as the engine's time.
    Handler.disable_nagle_algorithm = True
    slower = random.lognormvariate(0.0, pace.NOISE_SD)
    told = Told(ttfp=slower * pace.TTFP_MS / 1e3, rtf=slower * pace.RTF, seconds=pace.SECONDS, chunks=2)
    PretendOmni(told, options.served_model_name, options.port).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
