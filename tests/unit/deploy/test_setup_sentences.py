"""What setup says when it cannot go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.local.install import SetupError, check_disk, check_python, digest, reason_of


@pytest.mark.parametrize(
    ("pip_output", "words"),
    [
        (
            "WARNING: Retrying ... NewConnectionError: Failed to establish a new connection: [Errno 111]",
            "cannot be reached",
        ),
        (
            "socket.gaierror: Temporary failure in name resolution\nERROR: No matching distribution found",
            "cannot be reached",
        ),
        (
            "ERROR: No matching distribution found for ortools==9.15",
            "does not offer a locked package for this platform",
        ),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "do not trust it"),
        ("ERROR: Could not install packages: [Errno 28] No space left on device", "disk is full"),
        ("first\nERROR: something odd\nhint: see above", "pip failed (ERROR: something odd)"),
        ("", "pip failed (no output)"),
    ],
)
def test_pip_failures_become_one_sentence(pip_output: str, words: str) -> None:
    sentence = reason_of(pip_output)
    assert words in sentence
    assert "\n" not in sentence


def test_another_python_is_refused() -> None:
    with pytest.raises(SetupError, match=r"needs Python 3\.11 and this is 3\.12"):
        check_python((3, 12))


def test_too_little_disk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="free some space and run again"):
        check_disk(tmp_path, need_bytes=1 << 60)


def test_the_digest_follows_lock_and_project(tmp_path: Path) -> None:
    (tmp_path / "requirements.lock").write_text("a==1")
    (tmp_path / "pyproject.toml").write_text("[project]")
    first = digest(tmp_path)
    assert digest(tmp_path) == first
    (tmp_path / "requirements.lock").write_text("a==2")
    assert digest(tmp_path) != first
