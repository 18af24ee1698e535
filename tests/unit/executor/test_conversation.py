"""What a job says without being asked, by file or by a line on the socket, and what counts as nothing."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest

from services.executor.core.reports import Progress
from services.executor.shell.drivers import conversation
from services.executor.shell.drivers.conversation import Conversation, socket_path
from services.executor.shell.drivers.port import Answer
from services.runtime.clock import WallClock

PATIENCE_S = 20.0


@pytest.fixture
async def talk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(conversation, "PROGRESS_PERIOD_S", 0.0)
    talk = Conversation(tmp_path, WallClock())
    yield talk
    talk.close()


def put(path: Path, content: str) -> None:
    fresh = path.with_suffix(".fresh")
    fresh.write_text(content)
    fresh.replace(path)


async def reached() -> bool:
    return True


async def heard(talk: Conversation) -> Answer | Progress:
    async with asyncio.timeout(PATIENCE_S):
        while (said := talk.unheard()) is None:
            await asyncio.sleep(0.01)
    return said


async def test_each_file_is_heard_once_and_again_when_it_was_replaced(talk, tmp_path):
    assert talk.unheard() is None
    put(tmp_path / "checkpoint-answer", '{"fraction": 0.5, "location": "a"}')
    put(tmp_path / "progress", '{"step": 7}')
    assert talk.unheard() == Answer(0.5, "a")
    assert talk.unheard() == Progress(step=7)
    assert talk.unheard() is None
    put(tmp_path / "checkpoint-answer", '{"fraction": 0.5, "location": "a"}')
    assert talk.unheard() == Answer(0.5, "a")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"fraction": 2}', '{"fraction": "x"}', "\x00"])
async def test_nonsense_is_nothing_until_it_is_mended(talk, tmp_path, content):
    put(tmp_path / "checkpoint-answer", content)
    assert talk.unheard() is None
    put(tmp_path / "checkpoint-answer", '{"fraction": 1}')
    assert talk.unheard() == Answer(1.0, "")


async def test_lines_on_the_socket_are_heard_and_wrong_ones_skipped(talk):
    path = await talk.open()
    assert path == str(socket_path(talk._folder))

    def send(*lines: bytes) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.connect(path)
            line.sendall(b"".join(lines))

    progress = json.dumps({"progress": {"step": 3, "samples_per_s": 12.5}}).encode() + b"\n"
    await asyncio.to_thread(send, b"hello\n", b'{"checkpoint": {"fraction": 9}}\n', progress)
    assert await heard(talk) == Progress(step=3, samples_per_s=12.5)
    await asyncio.to_thread(send, b'{"checkpoint": {"fraction": 0.25, "location": "b"}}\n')
    assert await heard(talk) == Answer(0.25, "b")
    await asyncio.to_thread(send, b"x" * (conversation.LINE_BYTES_MAX + 10) + b"\n" + progress)
    await asyncio.to_thread(send, b'{"progress": {"fraction": 0.5}}\n')
    assert await heard(talk) == Progress(fraction=0.5)
    talk.close()
    assert not Path(path).exists()


async def test_an_answer_from_before_the_request_is_no_answer_to_it_but_still_news(talk, tmp_path):
    put(tmp_path / "checkpoint-answer", '{"fraction": 0.1, "location": "old"}')
    gone = asyncio.Event()
    gone.set()
    assert await talk.ask(reached, PATIENCE_S, gone) is None
    assert not (tmp_path / "checkpoint-request").exists()
    assert talk.unheard() == Answer(0.1, "old")


async def test_who_listens_for_news_leaves_an_awaited_answer_to_who_asked(talk, tmp_path):
    """Also at the moment at which the answer is there and the one who asked has not looked yet."""
    heard: list[object] = []
    asking = asyncio.ensure_future(talk.ask(reached, PATIENCE_S, asyncio.Event()))
    while not (tmp_path / "checkpoint-request").exists():
        await asyncio.sleep(0)
    put(tmp_path / "checkpoint-answer", '{"fraction": 0.5, "location": "a"}')
    put(tmp_path / "progress", '{"step": 7}')
    heard.append(talk.by_itself())
    assert await asyncio.wait_for(asking, PATIENCE_S) == Answer(0.5, "a")
    assert heard == [Progress(step=7)]
    assert talk.by_itself() is None
    put(tmp_path / "checkpoint-answer", '{"fraction": 0.6, "location": "b"}')
    assert talk.by_itself() == Answer(0.6, "b")


async def test_gpus_are_acknowledged_by_repeating_the_newest_list(talk, tmp_path):
    talk.tell_gpus("0,1")
    (tmp_path / "gpus-answer").write_text("0,1\n")
    await talk.gpus_acknowledged(PATIENCE_S, asyncio.Event())
    talk.tell_gpus("0")
    waiting = asyncio.ensure_future(talk.gpus_acknowledged(PATIENCE_S, asyncio.Event()))
    await asyncio.sleep(0)
    assert not waiting.done()
    (tmp_path / "gpus-answer").write_text("0")
    await asyncio.wait_for(waiting, PATIENCE_S)
