"""Journals: what was appended comes back, torn tails are cut, damage is refused, one executor per node."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.executor.core.journal import ENDED_KEPT_MAX, Applied, Moved, NodeState, Opened
from services.executor.core.lifecycle import Event
from services.executor.shell import journal_store
from services.executor.shell.journal_store import FileJournal, JournalError, MemoryJournal
from tests.unit.executor.executor_rig import assignment

ENTRIES = [
    Opened(boot_id="b/1", count=1),
    Applied(epoch=1, sequence=4),
    Moved(key="a/1", event=Event.START, assignment=assignment("a", 0, 1), sequence=4),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "n00" / "journal"


def written(path: Path) -> None:
    journal = FileJournal(path)
    journal.read()
    journal.append(ENTRIES)
    journal.close()


def test_entries_come_back_after_reopening(path):
    written(path)
    journal = FileJournal(path)
    assert journal.read() == ENTRIES
    journal.append([Applied(epoch=1, sequence=5)])
    journal.close()
    assert FileJournal(path).read()[-1] == Applied(epoch=1, sequence=5)


def test_memory_and_file_agree(path):
    memory, file = MemoryJournal(), FileJournal(path)
    for journal in (memory, file):
        journal.read()
        journal.append(ENTRIES)
        journal.replace([NodeState.of(journal.read()).snapshot()])
        journal.append(ENTRIES[1:2])
    assert memory.read() == file.read()


@pytest.mark.parametrize("kept", range(0, 60, 7))
def test_a_torn_last_line_is_cut_off_wherever_it_tore(path, kept):
    written(path)
    whole = path.read_bytes()
    last_start = whole.rstrip(b"\n").rfind(b"\n") + 1
    path.write_bytes(whole[: last_start + kept])
    journal = FileJournal(path)
    assert journal.read() == ENTRIES[:2]
    journal.append(ENTRIES[2:])
    assert journal.read() == ENTRIES


def test_damage_in_the_middle_is_refused_with_what_to_do(path):
    written(path)
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    with pytest.raises(JournalError, match="move the file away"):
        FileJournal(path).read()


def test_a_second_executor_on_one_journal_is_refused(path):
    first = FileJournal(path)
    with pytest.raises(JournalError, match="another executor"):
        FileJournal(path)
    first.close()
    FileJournal(path).close()


def test_a_long_file_asks_to_be_replaced(path):
    journal = FileJournal(path, compact_bytes=500)
    while not journal.oversized:
        journal.append(ENTRIES[:1])
    journal.replace(ENTRIES[:1])
    assert not journal.oversized
    assert journal.read() == ENTRIES[:1]


def test_a_snapshot_folds_to_the_same_state():
    state = NodeState.of([*ENTRIES, Moved(key="b/1", event=Event.STOP, assignment=assignment("b", 2))])
    again = NodeState.of([state.snapshot()])
    assert again.snapshot() == state.snapshot()
    assert list(again.ended) == ["b/1"]


def test_ended_attempts_are_forgotten_in_order_beyond_the_limit():
    state = NodeState()
    for number in range(ENDED_KEPT_MAX + 3):
        state.fold(Moved(key=f"j{number}/1", event=Event.STOP, assignment=assignment(f"j{number}", 0)))
    assert len(state.ended) == ENDED_KEPT_MAX
    assert next(iter(state.ended)) == "j3/1"


def test_what_is_safe_is_the_largest_share_with_the_place_it_came_with(path):
    """A job that went back and saved less takes nothing from what it had saved before; of equal shares the newest place counts."""
    state = NodeState.of([*ENTRIES, Moved(key="a/1", event=Event.STARTED)])
    for fraction, location, safe in (
        (0.5, "half", (0.5, "half")),
        (0.4, "less", (0.5, "half")),
        (0.5, "again", (0.5, "again")),
        (0.7, "more", (0.7, "more")),
    ):
        state.fold(Moved(key="a/1", event=Event.SAVED, fraction=fraction, location=location))
        run = state.runs["a/1"]
        assert (run.saved_fraction, run.saved_location) == safe


def test_a_snapshot_is_in_its_folder_before_anything_follows_it(path, monkeypatch):
    """Else a power cut brings the journal from before it back, without what was written since."""
    synced: list[Path] = []
    monkeypatch.setattr(journal_store, "_sync_folder", synced.append)
    journal = FileJournal(path)
    journal.read()
    journal.replace(ENTRIES[:1])
    assert synced == [path.parent]
    FileJournal(path.with_name("demo"), durable=False).close()
    assert synced == [path.parent]
