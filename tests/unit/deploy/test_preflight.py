"""Every missing thing gets one sentence that says what to do, and nothing that is fine gets in the way."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from deploy.local import preflight
from deploy.local.preflight import (
    PreflightError,
    check_cache,
    check_kafka,
    check_memory,
    check_packages,
    check_ports,
    check_run_folder,
    findings,
    require,
)


def test_this_machine_can_run_a_stack(tmp_path: Path) -> None:
    found = findings(tmp_path / "run")
    assert [finding.name for finding in found] == [
        "python", "packages", "openmp", "java", "cache", "kafka", "ports", "disk", "memory",
    ]  # fmt: skip
    require(tmp_path / "run")


def test_a_port_in_use_names_who_has_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        finding = check_ports([0, port])
    assert not finding.ok
    assert finding.sentence.startswith(f"Port {port} on 127.0.0.1 is in use by ")
    assert f"(process {os.getpid()}): stop what listens there, or choose another port." in finding.sentence
    assert check_ports([port]).ok


def test_a_file_in_place_of_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GPUGRID_CACHE", str(tmp_path / "file"))
    finding = check_cache()
    assert not finding.ok
    assert "cannot be written (File exists): free or fix it, or set GPUGRID_CACHE" in finding.sentence


def test_an_empty_cache_sends_to_setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUGRID_CACHE", str(tmp_path / "empty"))
    finding = check_kafka()
    assert not finding.ok
    assert finding.sentence.endswith("is not downloaded yet (45 MB): run make setup.")
    require(tmp_path / "run")  # not an obstacle: demo and up download it


def test_too_little_disk_and_memory(tmp_path: Path) -> None:
    assert "MB free and a stack needs" in check_run_folder(tmp_path, need_bytes=1 << 60).sentence
    assert check_memory(need_bytes=1 << 60).sentence.endswith("close something.")


def test_a_run_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    finding = check_run_folder(tmp_path / "file" / "run")
    assert not finding.ok
    assert "cannot be written (Not a directory): fix it or choose another." in finding.sentence
    with pytest.raises(PreflightError, match="cannot be written"):
        require(tmp_path / "file" / "run")


def test_packages_are_compared_with_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text("psutil==0.0.1 \\\n    --hash=sha256:00\nno-such-package-here==1.0 \\\n")
    assert check_packages(lock).sentence.startswith("2 packages differ from the lock file (psutil is ")
    assert check_packages(tmp_path / "nothing").ok


def test_a_container_limit_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert preflight._container_bytes(tmp_path) == 600
    (tmp_path / "memory.max").write_text("max\n")
    assert preflight._container_bytes(tmp_path) > 1 << 60


def test_a_check_that_fails_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> preflight.Finding:
        raise LookupError("odd machine")

    monkeypatch.setattr(preflight, "check_memory", broken)
    assert "The check itself failed (LookupError: odd machine)" in findings(tmp_path)[-1].sentence
