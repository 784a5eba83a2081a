#!/usr/bin/env bash
# Make a kit for a GPU machine without a network: FOLDER with vLLM, what perfbisect needs, git and perfbisect itself (docs/gpu.md).
#
#   scripts/gpu_kit.sh FOLDER [--python 3.12]        # downloads about 500 MB from pip's index; 5 to 10 minutes
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
PYTHONPATH=$root exec "${PYTHON:-python3}" -m scripts.gpu.kit "$@"
