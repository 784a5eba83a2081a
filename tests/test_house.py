"""House rules that no tool checks."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts import house

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "perfbisect"
MAX_LINES = 600
MAX_FILES = 20

FORBIDDEN = {
    "a shell": r"shell\s*=\s*True",
    "YAML that can build objects": r"yaml\.(load|unsafe_load|full_load)\(",
    "a kill by name": r"\b(pk" + r"ill|kill" + r"all)\b",
    "a path of one machine": r"(?<![\w.$}/~-])/(work|opt|root|tmp/scratch)/",
    "a registry's address": r"(pypi\.(org|python\.org)|python" + r"hosted\.org)",
}


def files(*suffixes: str) -> list[Path]:
    """Files of the repository as git would commit them, those of this test aside."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
    found = [ROOT / name for name in names if name.endswith(suffixes)]
    return [path for path in found if path.is_file() and path != Path(__file__).resolve()]


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def relative(paths: Iterable[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def project() -> dict[str, object]:
    table: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


OPTIONAL = {"apprise", "ray", "mcp", "anyio"}
"""Packages of extras; only what asks for them imports them."""


def declared() -> set[str]:
    dependencies = project()["dependencies"]
    assert isinstance(dependencies, list)
    return {canonicalize_name(Requirement(line).name) for line in dependencies}


def pins(name: str) -> dict[str, str]:
    """Package -> its block in a lock file."""
    blocks = re.split(r"\n(?=\S)", (ROOT / "requirements" / name).read_text().strip())
    return {canonicalize_name(re.split(r"[=\s\[;]", block, maxsplit=1)[0]): block for block in blocks}


def test_imports_go_one_way() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_files_and_folders_are_small() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in files(".py")}
    assert {str(path): length for path, length in lengths.items() if length > MAX_LINES} == {}
    folders = Counter(path.parent for path in modules() if path.name != "__init__.py")
    assert {str(folder): count for folder, count in folders.items() if count > MAX_FILES} == {}


def test_a_class_name_has_one_meaning() -> None:
    names = Counter(
        node.name
        for path in modules()
        for node in tree(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} == set()


def test_numbers_of_the_code_only_fall() -> None:
    worse = house.excesses(house.count_all(house.read_package(PACKAGE)))
    assert worse == [], "see `python -m scripts.house --list`; LIMITS there moves only towards the goals"


def test_every_module_says_what_it_is() -> None:
    silent = [path for path in modules() if not ast.get_docstring(tree(path))]
    assert relative(silent) == []


@pytest.mark.parametrize("what", FORBIDDEN)
def test_nowhere_is(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what])
    texts = files(".py", ".md", ".txt", ".toml", ".yaml", ".yml", ".json", ".in", "Makefile", "run", ".jinja")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


def test_the_patterns_find_what_they_are_for() -> None:
    examples = {
        "a shell": "run(x, shell=True)",
        "YAML that can build objects": "yaml.load(text)",
        "a kill by name": "pk" + "ill -f vllm",
        "a path of one machine": 'Path("/wo' + 'rk/main")',
        "a registry's address": "https://files.python" + "hosted.org/x",
    }
    assert examples.keys() == FORBIDDEN.keys()
    assert [what for what in FORBIDDEN if not re.search(FORBIDDEN[what], examples[what])] == []


def test_only_shells_print() -> None:
    printing = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in modules()
        if path.relative_to(PACKAGE).parts[0] != "cli"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert printing == []


def test_what_is_imported_is_declared_and_the_other_way_round() -> None:
    names: set[str] = set()
    for path in modules():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names.add(node.module.split(".")[0])
    outside = names - set(sys.stdlib_module_names) - {"perfbisect"} - OPTIONAL
    distributions = packages_distributions()
    imported = {canonicalize_name(distributions[name][0]) for name in outside}
    assert imported - declared() == set()
    assert declared() - imported == set()


def test_what_is_optional_is_imported_in_one_module_each() -> None:
    extras = project()["optional-dependencies"]
    assert isinstance(extras, dict)
    assert {Requirement(line).name for extra in extras.values() for line in extra} >= OPTIONAL
    importing = {
        path.relative_to(PACKAGE).as_posix()
        for path in modules()
        if re.search(rf"^\s*(import|from) ({'|'.join(OPTIONAL)})\b", path.read_text(), re.MULTILINE)
    }
    assert importing == {"fleet/ray_relay.py", "mcp/server.py", "nightly/notify.py"}
    users = [path for path in modules() if re.search(r"import.*ray_relay\b", path.read_text())]
    assert users == []


@pytest.mark.parametrize("name", ["runtime.txt", "dev.txt"])
def test_locks_have_what_is_declared(name: str) -> None:
    assert declared() - pins(name).keys() == set()


@pytest.mark.parametrize("name", ["runtime.txt", "dev.txt", "ray.txt", "explain.txt"])
def test_locks_are_pinned_and_hashed_and_name_no_place(name: str) -> None:
    locked = pins(name)
    loose = [p for p, block in locked.items() if "==" not in block or "--hash=sha256:" not in block]
    assert loose == []
    text = (ROOT / "requirements" / name).read_text()
    assert re.findall(r"^.*(?:://|(?<![\w])/|--(?:index|find|extra)).*$", text, re.MULTILINE) == []


def test_the_lock_for_development_holds_that_for_running() -> None:
    runtime, development = pins("runtime.txt"), pins("dev.txt")
    assert {name: block for name, block in runtime.items() if development.get(name) != block} == {}


SENTENCES = {
    "bisect/decision/": "what a slot waits for: nothing prints it",
    "bisect/figures.py": "axes and legends",
    "bisect/forecast.py": "a line of the terminal, about an option",
    "bisect/policy.py": "advice of an error",
    "bisect/result.py": "an addition to the message of an error",
    "dashboard/command.py": "progress",
    "experiments/compare.py": "how often a share is zero: two counts and their sides",
    "experiments/dry_run.py": "on what a forecast rests, beside that of earlier launches",
    "experiments/measure.py": "advice of an error",
    "explain/command.py": "messages of errors",
    "explain/profile_job.py": "message of an error",
    "nightly/command.py": "progress",
    "nightly/config.py": "messages of errors",
    "nightly/delivery.py": "messages of errors, and progress",
    "nightly/journal.py": "advice of an error",
    "nightly/keep.py": "the result of a step",
    "nightly/measure.py": "messages of an interrupt",
    "nightly/run.py": "progress",
    "report/console.py": "progress",
    "report/plots.py": "axes and legends",
    "series/publish.py": "messages of errors",
    "series/sources/": "messages of errors, and the help of --source",
    "series/suspects/window.py": "advice of errors",
    "setup/templates.py": "comments of the file that init writes",
}
"""Places in rooms with templates whose sentences are no report's, each with its reason."""
FEWEST_WORDS = 5
WORD = re.compile(r"(?<![\w./<=-])[A-Za-z][a-z']+(?![\w/=-]|\.\w)")
SAID_ELSEWHERE = re.compile(r"(Error|Option|Interrupted|compile|error|say)$")
"""Calls whose texts are messages, help or patterns."""


def sentences(path: Path) -> list[str]:
    """Texts of several words that are no docstring, message of an error, help, pattern or name of a value."""
    parents = {child: node for node in ast.walk(tree(path)) for child in ast.iter_child_nodes(node)}

    def is_elsewhere(node: ast.AST) -> bool:
        while (node := parents.get(node, tree(path))) is not tree(path):
            if isinstance(node, ast.Raise | ast.Compare | ast.Assert):
                return True
            if isinstance(node, ast.Call) and SAID_ELSEWHERE.search(ast.unparse(node.func)):
                return True
            if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
                return True
            if isinstance(node, ast.keyword) and node.arg in ("advice", "help", "next_step"):
                return True
        return False

    found = []
    for node, parent in parents.items():
        if isinstance(parent, ast.Expr | ast.JoinedStr | ast.FormattedValue):
            continue
        text = ""
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        is_code = "\n" in text or "|" in text or re.match("SELECT|INSERT|UPDATE|DELETE", text)
        if len(WORD.findall(text)) >= FEWEST_WORDS and not is_code and not is_elsewhere(node):
            found.append(f"{path.relative_to(PACKAGE)}: {text}")
    return found


def test_reports_have_their_sentences_in_templates() -> None:
    rooms = {folder.parent for folder in PACKAGE.rglob("templates") if folder.is_dir()}
    found = [
        sentence
        for room in sorted(rooms)
        for path in sorted(room.rglob("*.py"))
        if path.name != "wing.py"
        for sentence in sentences(path)
    ]
    assert [text for text in found if not text.startswith(tuple(SENTENCES))] == []
    assert [place for place in SENTENCES if not any(text.startswith(place) for text in found)] == []


def test_sentences_are_told_from_messages_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    (tmp_path / "a.py").write_text(
        '"""A module of a few words."""\n'
        'NOTE = f"the machine of {1} was slow that night"\n'
        'if NOTE == "a name of a value here":\n'
        '    raise ValueError("this is said by an error")\n'
    )
    assert sentences(tmp_path / "a.py") == ["a.py: the machine of {} was slow that night"]


def anchors(path: Path) -> set[str]:
    """The names of a document's headings, as a forge makes them."""
    heads = re.findall(r"^#+ +(.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def test_links_between_documents_lead_somewhere() -> None:
    broken = []
    for path in files(".md"):
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", path.read_text())):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            there = (path.parent / name).resolve() if name else path
            if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors(there)):
                broken.append(f"{path.relative_to(ROOT)}: {target}")
    assert broken == []
