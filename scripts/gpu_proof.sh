#!/usr/bin/env bash
# Prove perfbisect on a GPU: install, measure, find a planted slow commit (docs/gpu.md). Runs where the device is.
#
#   scripts/gpu_proof.sh first  --kit FOLDER         # install, smoke, one launch, bisect, a claim
#   scripts/gpu_proof.sh second --kit FOLDER         # install, smoke, doctor, another tenant, kill -9 and resume
#   scripts/gpu_proof.sh first  --python INTERPRETER # of a vLLM that is installed: nothing is unpacked
#
# Ends with 0 if the proof holds, 1 if it does not, 75 if its time is over: say the same again, it goes on where it was.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
PYTHONPATH=$root exec "${PYTHON:-python3}" -m scripts.gpu.proof "$@"
