"""What a cell needs from a hub, brought here before anything starts; from then on the attempt is offline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from perfbisect.core.cell import Cell
from perfbisect.core.cell_parts import LOCAL
from perfbisect.errors import MachineError
from perfbisect.system import logs, proc
from perfbisect.system.proc import Asked

OFFLINE_WORDS = ("1", "true", "yes", "on")
"""Values of ``HF_HUB_OFFLINE`` that keep the hub's client from the network."""

_CANNOT = 3
"""Exit code of the script where the interpreter has no client of the hub."""

_SCRIPT = f"""
import sys
try:
    from huggingface_hub import HfApi, snapshot_download
except ImportError as error:
    print(error)
    sys.exit({_CANNOT})
for argument in sys.argv[1:]:
    name, _, revision = argument.partition("@")
    try:
        files = HfApi().list_repo_files(name, revision=revision or None)
    except Exception as error:
        # A machine without a way to the hub may have it all.
        try:
            print(snapshot_download(name, revision=revision or None, local_files_only=True), flush=True)
            continue
        except Exception:
            sys.exit(f"{{type(error).__name__}}: {{error}}")
    # Weights come in several formats; where there are safetensors, an engine reads those.
    other = ["*.bin", "*.pt", "*.pth", "*.gguf", "*.msgpack", "*.h5", "original/*"]
    skip = other if any(file.endswith(".safetensors") for file in files) else []
    print(snapshot_download(name, revision=revision or None, ignore_patterns=skip), flush=True)
"""


def from_hub(cell: Cell) -> tuple[str, ...]:
    """Model repositories that the cell names on a hub: ``owner/name`` or ``owner/name@revision``.

    The model, the tokenizer and a draft model of speculative decoding; what lies on this machine is left out.
    """
    draft = cell.serve_args.get("speculative-config")
    named = [
        (cell.model, cell.revision.model),
        (cell.tokenizer, cell.revision.tokenizer),
        (draft.get("model") if isinstance(draft, Mapping) else None, None),
    ]
    return tuple(
        dict.fromkeys(
            f"{name}@{revision}" if revision else str(name)
            for name, revision in named
            if name and not str(name).startswith(("/", ".")) and not (revision or "").startswith(LOCAL)
        )
    )


def not_here(repositories: Iterable[str], shell: Mapping[str, str]) -> tuple[str, ...]:
    """Those that the hub's cache of this machine lacks, where the user's shell forbids to fetch them."""
    if shell.get("HF_HUB_OFFLINE", "") not in OFFLINE_WORDS:
        return ()
    home = Path(shell.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(shell.get("HF_HUB_CACHE") or home / "hub")
    missing = []
    for repository in repositories:
        name, _, revision = repository.partition("@")
        snapshots = cache / f"models--{name.replace('/', '--')}" / "snapshots"
        if not (snapshots / revision).is_dir():
            missing.append(repository)
    return tuple(missing)


def data_from_hub(cell: Cell) -> bool:
    """True if the client reads its prompts from a hub, before it loads the server: it must stay online."""
    return bool(cell.dataset_path) and not (cell.revision.dataset or "").startswith(LOCAL)


def fetch(
    repositories: tuple[str, ...],
    *,
    interpreter: Path,
    env: Mapping[str, str],
    log: Path,
    token: str,
    timeout: float,
    asked: Asked,
) -> bool:
    """Bring model repositories into the hub's cache of this machine. True if all of them are there now.

    False where the interpreter has no hub client: the engine then fetches by itself, during its start.

    :raises MachineError: the hub does not answer or refuses, or not within ``timeout`` seconds.
    :raises Interrupted: a stop was asked for.
    """
    ended = proc.run(
        (str(interpreter), "-c", _SCRIPT, *repositories),
        env=env,
        cwd=log.parent,
        log=log,
        token=token,
        timeout=timeout,
        asked=asked,
    )
    if ended.code == 0:
        return True
    if ended.code == _CANNOT:
        return False
    why = f"not within {timeout:.0f} s" if ended.timed_out else logs.cause(log) or logs.tail(log)
    raise MachineError(
        f"the hub did not give {', '.join(repositories)}: {why}",
        where=log,
        next_step="see HF_TOKEN, HF_ENDPOINT and HF_HOME, or put the files there and set HF_HUB_OFFLINE=1",
        code="hub_unreachable",
        output="" if ended.timed_out else why,
    )
