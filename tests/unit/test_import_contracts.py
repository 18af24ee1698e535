"""The import contracts hold, and each of them breaks on a planted violation (a contract that can't break proves nothing)."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLANTED = {
    "layers": ("services/intake/core/planted.py", "import services.intake.shell"),
    "independent": ("services/executor/shell/planted.py", "import services.intake.core"),
    "pure-core": ("services/executor/core/planted.py", "import time"),
    "schemas-leaf": ("schemas/planted.py", "import services.runtime.clock"),
    "deploy-below": ("deploy/local/planted.py", "import services.runtime.clock"),
    "deployed-unaware": ("services/runtime/planted.py", "import deploy.local"),
}


def lint(root: Path, contract: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    if contract is not None:
        command += ["--contract", contract]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    for package in ("services", "schemas", "deploy"):
        only_code = shutil.ignore_patterns("data", "json", "examples", "__pycache__", "*.csv*", "*.json*")
        shutil.copytree(ROOT / package, root / package, ignore=only_code)
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


def test_all_contracts_are_kept_and_all_are_tried_below(copy: Path):
    done = lint(copy)
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout
    ids = re.findall(r'^id = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert ids == list(PLANTED)


@pytest.mark.parametrize("contract", PLANTED)
def test_a_planted_violation_breaks_its_contract(copy: Path, contract: str):
    name, line = PLANTED[contract]
    planted = copy / name
    planted.write_text(f"{line}\n")
    try:
        done = lint(copy, contract)
    finally:
        planted.unlink()
    assert done.returncode == 1, done.stdout
    assert "BROKEN" in done.stdout


@pytest.mark.parametrize(
    "module", ["aiokafka", "services.runtime.bus.port", "random", "opentelemetry.trace", "lightgbm"]
)
def test_a_core_may_not_import(copy: Path, module: str):
    planted = copy / "services" / "allocator" / "core" / "planted.py"
    planted.write_text(f"import {module}\n")
    try:
        assert lint(copy, "pure-core").returncode == 1
    finally:
        planted.unlink()


def test_a_new_service_must_be_placed(copy: Path):
    fresh = copy / "services" / "newcomer"
    fresh.mkdir()
    (fresh / "__init__.py").write_text("")
    try:
        assert lint(copy, "independent").returncode == 1
    finally:
        shutil.rmtree(fresh)
