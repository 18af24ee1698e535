"""The page over HTTP: what anybody may read, what needs the token, what foreign sites can't do, streams and their resets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from schemas.commands import DrainNode, UndrainNode
from schemas.jobs import JobChanged, JobSubmitted
from services.console.errors import ConsoleError
from services.console.facts import readable
from services.console.page import access as access_module
from services.console.page.access import SESSION_S_MAX, SESSIONS_MAX, Access, token_of
from services.console.page.hub import Hub
from services.console.page.server import PageServer
from services.console.page.stream import QUEUE_MAX, RESET, Stream
from tests import build
from tests.page_stage import HOUR_MS, NOW_MS, Stage

TOKEN = "secret"
BEARER = {"Authorization": f"Bearer {TOKEN}", "X-Gpugrid": "1"}
DEADLINE_S = 20.0


async def small() -> Stage:
    stage = Stage()
    await stage.publish(build.node("n00"))
    await stage.place("a", "n00", [0, 1], NOW_MS - HOUR_MS)
    await stage.wait("b", 8, at_ms=NOW_MS - HOUR_MS, reason="fragmented")
    return stage


@contextlib.asynccontextmanager
async def client_of(stage: Stage) -> AsyncIterator[aiohttp.ClientSession]:
    server = PageServer(stage.session, Access(TOKEN), host="127.0.0.1", port=0, planning=False)
    await server.start()
    jar = aiohttp.CookieJar(unsafe=True)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}", cookie_jar=jar) as client:
            await asyncio.wait_for(server.follower.ready.wait(), DEADLINE_S)
            yield client
    finally:
        await server.stop()


async def test_everybody_may_read():
    async with client_of(await small()) as client:
        snapshot = await (await client.get("/api/snapshot")).json()
        assert snapshot["jobs"]["a"]["state"] == "running"
        assert snapshot["jobs"]["b"]["reason"] == "fragmented"
        assert (await (await client.get("/api/jobs/b")).json())["explanation"]["sentence"].startswith("b waits")
        assert (await (await client.get("/api/jobs/a/trace")).json())["spans"]
        report = await (await client.get("/api/report?by=kind&hours=24")).json()
        assert report["total"]["held_h"] == pytest.approx(2.0, abs=0.01)
        for kind, start in (("csv", "kind,"), ("html", "<!doctype html>")):
            assert (await (await client.get(f"/api/report?by=kind&format={kind}")).text()).startswith(start)
        assert (await client.get("/")).status == 200
        for name in ("main.js", "page.css", "icon.svg"):
            answer = await client.get(f"/static/{name}")
            assert answer.status == 200
            assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        assert (await client.get("/readyz")).status == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/static/..%2Fserver.py", 404),
        ("/static/server.py", 404),
        ("/static/none.js", 404),
        ("/api/jobs/nobody", 409),
        ("/api/report?by=colour", 400),
        ("/api/report?hours=0", 400),
        ("/api/stream", 400),
    ],
)
async def test_what_does_not_exist_or_makes_no_sense_is_said(path: str, status: int):
    async with client_of(await small()) as client:
        answer = await client.get(aiohttp.client.URL(path, encoded=True))
        assert answer.status == status
        assert (await answer.json())["error"]


ORDERS = ("/api/jobs", "/api/jobs/b/cancel", "/api/jobs/b/priority", "/api/nodes/n00/drain", "/api/nodes/n00/undrain")


@pytest.mark.parametrize("path", ORDERS)
async def test_orders_need_the_token_and_our_own_header(path: str):
    stage = await small()
    async with client_of(stage) as client:
        assert (await client.post(path, headers={"X-Gpugrid": "1"})).status == 401
        assert (await client.post(path, headers={"X-Gpugrid": "1", "Authorization": "Bearer x"})).status == 401
        assert (await client.post(path, headers={"Authorization": f"Bearer {TOKEN}"})).status == 403
    assert not stage.bus.records("commands")
    assert not stage.bus.records("job-events")


async def test_orders_are_published_like_the_command_lines():
    stage = await small()
    async with client_of(stage) as client:
        spec = {"kind": "training", "priority": 5, "sizes": [2], "command": ["true"]}
        answer = await client.post("/api/jobs", headers=BEARER, json=spec)
        assert answer.status == 202
        assert (await answer.json())["sent"][0]["id"].startswith("training-")
        assert (await client.post("/api/jobs/b/priority", headers=BEARER, json={"priority": 9})).status == 202
        assert (await client.post("/api/nodes/n00/drain", headers=BEARER, json={"deadline_s": 60})).status == 202
        assert (await client.post("/api/nodes/n00/undrain", headers=BEARER)).status == 202
        assert (await client.post("/api/jobs", headers=BEARER, data=b"{")).status == 400
        assert (await client.post("/api/jobs/nobody/cancel", headers=BEARER)).status == 409
        assert (await client.post("/api/nodes/n00/drain", headers=BEARER, json={"deadline_s": "x"})).status == 400
    sent = [readable(one).event for topic in ("job-events", "commands") for one in stage.bus.records(topic)]
    assert {type(event) for event in sent} == {JobSubmitted, JobChanged, DrainNode, UndrainNode}


async def test_a_session_lasts_until_logout(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("services.console.page.server.FAILED_WAIT_S", 0.0)
    async with client_of(await small()) as client:
        own = {"X-Gpugrid": "1"}
        assert (await client.post("/api/login", headers=own, json={"token": "wrong"})).status == 401
        answer = await client.post("/api/login", headers=own, json={"token": TOKEN})
        assert "HttpOnly" in answer.headers["Set-Cookie"]
        assert "SameSite=Strict" in answer.headers["Set-Cookie"]
        assert (await (await client.get("/api/session")).json())["may_change"]
        assert (await client.post("/api/jobs/b/cancel", headers=own)).status == 202
        assert (await client.post("/api/logout", headers=own)).status == 200
        assert (await client.post("/api/jobs/b/cancel", headers=own)).status == 401


async def test_a_foreign_name_for_this_machine_is_refused():
    async with client_of(await small()) as client:
        assert (await client.get("/api/snapshot", headers={"Host": "evil.example"})).status == 421


async def test_the_stream_sends_what_changes_after_the_snapshot():
    stage = await small()
    async with client_of(stage) as client:
        snapshot = await (await client.get("/api/snapshot")).json()
        query = f"/api/stream?epoch={snapshot['epoch']}&version={snapshot['version']}"
        async with client.get(query) as answer:
            await stage.wait("later", 1, at_ms=NOW_MS)

            async def first_with_later() -> dict:
                async for line in answer.content:
                    if line.startswith(b"data: ") and b'"later"' in line:
                        return json.loads(line[6:])
                raise AssertionError("the stream ended")

            delta = await asyncio.wait_for(first_with_later(), DEADLINE_S)
        assert delta["version"] > snapshot["version"]
        async with client.get("/api/stream?epoch=other&version=1") as answer:
            assert await answer.content.read() == RESET


async def test_who_does_not_keep_up_starts_over():
    hub = Hub("e")
    stream = Stream(hub)
    events = stream.events("e", 0, lambda: b"beat")
    assert await anext(events) == b"beat"
    for _ in range(QUEUE_MAX + 1):
        stream.publish(b"{}")
    assert await anext(events) == RESET
    with pytest.raises(StopAsyncIteration):
        await anext(events)
    assert not stream.full


async def test_a_broker_that_is_away_is_said_and_waited_for():
    stage = await small()
    stage.away = True
    server = PageServer(stage.session, Access(TOKEN), host="127.0.0.1", port=0, planning=False)
    await server.start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as client:

            async def answered(status: int) -> dict:
                while True:
                    answer = await client.get("/readyz")
                    if answer.status == status:
                        return await answer.json()
                    await asyncio.sleep(0.05)

            assert not (await asyncio.wait_for(answered(503), DEADLINE_S))["ready"]
            stage.away = False
            assert (await asyncio.wait_for(answered(200), DEADLINE_S))["ready"]
    finally:
        await server.stop()


def test_the_token_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path):
    path = tmp_path / "deep" / "page-token"
    token = token_of(path)
    assert len(token) >= 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token_of(path) == token
    path.write_text("")
    with pytest.raises(ConsoleError, match="empty"):
        token_of(path)


def test_sessions_end_and_are_bounded():
    access = Access(TOKEN)
    first = access.login(TOKEN, 0.0)
    assert access.may_change(cookie=first, bearer=None, wall_s=1.0)
    assert not access.may_change(cookie=first, bearer=None, wall_s=SESSION_S_MAX + 1)
    for _ in range(SESSIONS_MAX):
        access.login(TOKEN, 0.0)
    assert not access.may_change(cookie=first, bearer=None, wall_s=1.0)
    assert access_module.SESSIONS_MAX == SESSIONS_MAX
