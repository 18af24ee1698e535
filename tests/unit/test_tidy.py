"""House rules that a machine can check, and for each a planted violation that the check must find.

Import arrows are import-linter's (`pyproject.toml`, tried in `test_import_contracts.py`); style is ruff's.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
BANNED_STEMS = ("common", "helper", "helpers", "manager", "misc", "util", "utils")
TOP_FOLDERS = ("schemas", "services", "deploy", "tests", "bench", "docs", ".ci")
CORE_BANNED_CALLS = ("open", "print", "input", "eval", "exec")
CORE_BANNED_MODULES = (
    "asyncio",
    "datetime",
    "logging",
    "os",
    "pathlib",
    "random",
    "socket",
    "subprocess",
    "threading",
    "time",
)
SCHEMAS_EXTERNAL = ("msgspec",)

# Built from pieces, so that this file doesn't find itself.
MACHINE_PATHS = re.compile(
    "|".join([r"(?<![\w.])/" + name + "/" for name in ("work", "root", "home/\\w+", "tmp/gpugrid")])
)
OUTSIDE_PATHS = re.compile(r"\.\./" + "shared")
REGISTRY_HOSTS = re.compile(
    "|".join(
        re.escape(host)
        for host in (
            "pypi" + ".org",
            "python" + "hosted.org",
            "repo1." + "maven.org",
            "repo.maven." + "apache.org",
            "registry." + "npmjs.org",
            "proxy." + "golang.org",
            "--index" + "-url",
        )
    )
)
TEXT_SUFFIXES = {".py", ".toml", ".md", ".lock", ".json", ".yaml", ".yml", ".sh", ".txt", ".cfg", ""}


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:  # a source archive without git
        found = [path for path in ROOT.rglob("*") if path.is_file() and ".venv" not in path.parts]
        return [path for path in found if not patterns or any(path.match(pattern) for pattern in patterns)]
    return [path for name in listed.stdout.decode().split("\0") if name and (path := ROOT / name).exists()]


def code() -> list[Path]:
    return tracked("*.py")


def cores() -> list[Path]:
    return [path for path in code() if _in_core(path.relative_to(ROOT))]


def _in_core(path: Path) -> bool:
    return len(path.parts) > 3 and path.parts[0] == "services" and path.parts[2] == "core"


def too_long_functions(source: str) -> list[str]:
    return [
        f"{node.name} has {lines} lines"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1 - _docstring_lines(node)) > FUNCTION_LINES_MAX
    ]


def _docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """A command's docstring is its help, which should teach: it doesn't count."""
    if ast.get_docstring(node) is None:
        return 0
    first = node.body[0]
    return (first.end_lineno or 0) - first.lineno + 1


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def impurities(source: str) -> list[str]:
    """What a core may not do and import-linter can't see (or sees, too)."""
    tree = ast.parse(source)
    found = [f"imports {name}" for name in imported(tree) if name.split(".")[0] in CORE_BANNED_MODULES]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in CORE_BANNED_CALLS:
                found.append(f"calls {name}")
            if re.fullmatch(r"(np|numpy)\.random\.[a-z]\w*", name) and not name.endswith(".default_rng"):
                found.append(f"calls {name}, whose state is global")
            if re.fullmatch(r"(np|numpy)\.random\.(default_rng|PCG64|SeedSequence)", name) and not node.args:
                found.append(f"calls {name} without a seed")
        if isinstance(node, ast.For | ast.comprehension) and _is_set(node.iter):
            found.append(f"iterates over a set: {ast.unparse(node.iter)}")
        if isinstance(node, ast.Global):
            found.append(f"has global state: {', '.join(node.names)}")
    return found


def _is_set(node: ast.AST) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset")


def leaks(text: str) -> list[str]:
    return [
        found.group() for pattern in (MACHINE_PATHS, OUTSIDE_PATHS, REGISTRY_HOSTS) for found in pattern.finditer(text)
    ]


def foreign_imports(source: str) -> list[str]:
    names = {name.split(".")[0] for name in imported(ast.parse(source))}
    return sorted(names - set(sys.stdlib_module_names) - set(SCHEMAS_EXTERNAL) - {"schemas"})


def wrong(name: str) -> bool:
    return any(part in BANNED_STEMS for part in re.split(r"[_.]", name.lower()))


def test_files_stay_short():
    long = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in code()}
    assert {name: lines for name, lines in long.items() if lines > FILE_LINES_MAX} == {}


def test_functions_stay_short():
    found = {str(path.relative_to(ROOT)): too_long_functions(path.read_text()) for path in code()}
    assert {name: functions for name, functions in found.items() if functions} == {}


def test_every_file_has_one_idea_as_its_name_and_a_docstring_that_states_it():
    assert [str(path) for path in code() if wrong(path.stem)] == []
    silent = [
        str(path.relative_to(ROOT))
        for path in code()
        if path.relative_to(ROOT).parts[0] in TOP_FOLDERS and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert [name for name in silent if (ROOT / name).read_text().strip()] == []


def test_cores_are_pure():
    found = {str(path.relative_to(ROOT)): impurities(path.read_text()) for path in cores()}
    assert len(found) > 10, "the cores are there"
    assert {name: reasons for name, reasons in found.items() if reasons} == {}


def test_schemas_need_only_msgspec():
    found = {path.name: foreign_imports(path.read_text()) for path in tracked("schemas/*.py")}
    assert {name: modules for name, modules in found.items() if modules} == {}


def test_no_machine_paths_and_no_registry_hosts():
    found = {
        str(path.relative_to(ROOT)): leaks(path.read_text(errors="replace"))
        for path in tracked()
        if path.suffix in TEXT_SUFFIXES and "traces" not in path.parts and path.stat().st_size < 2_000_000
    }
    assert {name: leaked for name, leaked in found.items() if leaked} == {}


def test_no_strange_top_folders():
    folders = {path.relative_to(ROOT).parts[0] for path in tracked() if len(path.relative_to(ROOT).parts) > 1}
    assert folders <= {*TOP_FOLDERS, ".github"}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import time", "imports time"),
        ("from datetime import date", "imports datetime"),
        ("import os.path", "imports os"),
        ("x = np.random.rand(3)", "whose state is global"),
        ("x = np.random.default_rng()", "without a seed"),
        ("for x in {'a', 'b'}: pass", "iterates over a set"),
        ("y = [x for x in set(z)]", "iterates over a set"),
        ("def f():\n    global x\n    x = 1", "global state"),
        ("print(1)", "calls print"),
    ],
)
def test_planted_impurities_are_found(source: str, expected: str):
    assert expected in " ".join(impurities(source))


def test_clean_code_is_left_alone():
    assert impurities("rng = np.random.default_rng(seed)\nfor x in sorted({1, 2}): pass\n") == []
    assert leaks("see services/runtime and http://127.0.0.1/work, framework/") == []
    assert not wrong("kafka_consumer")


def test_planted_untidiness_is_found():
    assert too_long_functions("def f():\n" + "    x = 1\n" * 70) == ["f has 71 lines"]
    assert wrong("string_utils")
    assert wrong("manager")
    assert leaks("cd " + "/wo" + "rk/main") == ["/wo" + "rk/"]
    assert leaks("https://" + "pypi" + ".org/simple") == ["pypi" + ".org"]
    assert leaks("../" + "shared/x") == ["../" + "shared"]
    assert foreign_imports("import numpy\nimport json\nfrom schemas.x import y\nimport msgspec") == ["numpy"]
