"""What an attempt needs before its server: model files from a hub, and the client's version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from perfbisect.clients import Client
from perfbisect.common.json_text import parse_json
from perfbisect.environments.base import Environment
from perfbisect.errors import ClientError, MachineError
from perfbisect.measure.record import ClientVersion
from perfbisect.model.cell import LOCAL, Cell
from perfbisect.system import commands, logs
from perfbisect.system.processes import StopRequested, never

_CANNOT = 3
"""Exit code of the script without a hub client."""

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


_DIGEST = """
import hashlib, importlib.util, json, os, pathlib, platform, sys
package, *sources = sys.argv[1:]
spec = importlib.util.find_spec(package)
if spec is None or not spec.submodule_search_locations:
    sys.exit(f"no package {package}")
root = pathlib.Path(next(iter(spec.submodule_search_locations)))
digest, count = hashlib.sha256(), 0
for source in sources:
    # A package may be a link: what stands beside it is beside the link.
    path = pathlib.Path(os.path.normpath(root / source))
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.is_file() else []
    for file in files:
        content = file.read_bytes()
        digest.update(f"{os.path.relpath(file, root)} {len(content)}\\n".encode() + content)
        count += 1
found = {"sha256": digest.hexdigest(), "files": count, "root": str(root), "python": platform.python_version()}
print(json.dumps(found))
"""
_DIGEST_LIMIT_S = 60.0


def hub_repositories(cell: Cell) -> tuple[str, ...]:
    """Hub repositories of model, tokenizer and draft model: ``owner/name`` or ``owner/name@revision``."""
    # The engine downloads a draft model too, and would have to do so offline.
    draft = cell.serve_args.get("speculative-config")
    named = [
        (cell.model, cell.revision.model),
        (cell.tokenizer, cell.revision.tokenizer),
        (draft.get("model") if isinstance(draft, Mapping) else None, None),
    ]
    remote = (
        f"{name}@{revision}" if revision else str(name)
        for name, revision in named
        # A path is not a repository of a hub.
        if name and not str(name).startswith(("/", ".")) and not (revision or "").startswith(LOCAL)
    )
    return tuple(dict.fromkeys(remote))


def is_offline(shell: Mapping[str, str]) -> bool:
    """Whether the user forbids downloads from a hub."""
    return shell.get("HF_HUB_OFFLINE", "") in ("1", "true", "yes", "on")


def missing_repositories(repositories: Iterable[str], shell: Mapping[str, str]) -> tuple[str, ...]:
    """Repositories that the local cache lacks while the shell forbids downloads."""
    if not is_offline(shell):
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


def fetch_models(
    repositories: tuple[str, ...],
    *,
    interpreter: Path,
    env: Mapping[str, str],
    log: Path,
    token: str,
    timeout: float,
    stop_requested: StopRequested,
) -> bool:
    """Download repositories into the hub's cache; False if the interpreter has no hub client."""
    ended = commands.run_script(
        _SCRIPT,
        *repositories,
        interpreter=interpreter,
        env=env,
        log=log,
        token=token,
        timeout=timeout,
        stop_requested=stop_requested,
    )
    if ended.code == 0:
        return True
    if ended.code == _CANNOT:
        return False
    why = f"not within {timeout:.0f} s" if ended.timed_out else logs.cause(log) or logs.tail(log)
    raise MachineError(
        f"cannot download {', '.join(repositories)}: {why}",
        where=log,
        next_step="check HF_TOKEN, HF_ENDPOINT and HF_HOME, or copy the files there and set HF_HUB_OFFLINE=1",
        code="hub_unreachable",
        output="" if ended.timed_out else why,
    )


def identify_client(
    client: Client,
    environment: Environment,
    env: Mapping[str, str],
    folder: Path,
    stop_requested: StopRequested = never,
) -> ClientVersion:
    """Digest the client's sources with its interpreter, without importing the engine.

    Raises:
        ClientError: the interpreter fails, or the package or its sources are missing.
    """
    log = folder / "client-digest.log"
    ended = commands.run_script(
        _DIGEST,
        client.package,
        *client.sources,
        interpreter=environment.interpreter,
        env=env,
        log=log,
        timeout=_DIGEST_LIMIT_S,
        stop_requested=stop_requested,
    )
    text = logs.text_of(log).strip()
    try:
        facts = parse_json(text.splitlines()[-1]) if ended.code == 0 and text else None
    except ValueError:
        facts = None
    if not isinstance(facts, dict) or not facts.get("files") or not facts.get("sha256"):
        output = logs.cause(log) or logs.tail(log, 3)
        raise ClientError(
            f"cannot digest the client's sources ({client.package}: {', '.join(client.sources)}) with "
            f"{environment.interpreter}: {output}",
            where=log,
            output=output,
        )
    log.unlink(missing_ok=True)
    return ClientVersion(client.name, environment.engine_version, str(facts["sha256"]), facts)
