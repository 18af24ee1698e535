"""The page as a process beside the services: how `up` starts it, which port it gets, where its token is."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from deploy.local.service_processes import Surroundings
from services.console import local_stack
from services.console.local_stack import _page_port, page_process
from services.console.page.serve import token_path
from services.console.session import Session


def around(run_dir: Path) -> Surroundings:
    return Surroundings(
        run_dir=run_dir,
        bootstrap="127.0.0.1:9092",
        catalog=run_dir / "catalog.toml",
        cluster="c0",
        pool="h100",
        nodes=("n00",),
        clock="wall",
    )


def test_it_knows_its_stack_and_never_brings_it_down(tmp_path: Path):
    spec = page_process("local", around(tmp_path / "local"), 12345)
    assert spec.argv[-3:] == ("--service", "--port", "12345")
    assert spec.env["GPUGRID_STACK"] == "local"
    assert spec.env["GPUGRID_RUN_ROOT"] == str(tmp_path)
    assert spec.ports == {"page": 12345}
    assert all(spec.restart.pause_s(1, deaths, was_ready=False) is not None for deaths in (1, 8, 100))


def test_the_usual_port_is_left_to_whoever_has_it(monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(local_stack, "PORT_DEFAULT", taken.getsockname()[1])
        assert _page_port(None) != taken.getsockname()[1]
    assert _page_port(4711) == 4711
    assert _page_port(0) > 0


def test_the_token_is_in_the_named_file_or_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    session = Session(make_bus=lambda _: None, run_root=tmp_path)  # type: ignore[arg-type,return-value]
    monkeypatch.setenv("GPUGRID_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GPUGRID_PAGE_TOKEN_FILE", raising=False)
    assert token_path(session) == tmp_path / "cache" / "page-token"
    monkeypatch.setenv("GPUGRID_PAGE_TOKEN_FILE", str(tmp_path / "mine"))
    assert token_path(session) == tmp_path / "mine"
