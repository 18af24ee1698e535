"""The lifecycle page is what the tables say, and would show a change of them."""

from __future__ import annotations

from services.allocator.core import phases
from services.console import lifecycle_page


def test_the_page_is_drawn_from_the_tables():
    assert lifecycle_page.PAGE.read_text() == lifecycle_page.page(), (
        "docs/lifecycle.md is outdated: python -m services.console.lifecycle_page"
    )


def test_a_planted_transition_changes_the_page(monkeypatch):
    planted = {**phases.PHASES, (phases.Phase.COMPLETED, phases.Happening.PLACE): phases.Phase.STARTING}
    monkeypatch.setattr(phases, "PHASES", planted)
    assert "completed --> starting: place" in lifecycle_page.page()
    assert lifecycle_page.page() != lifecycle_page.PAGE.read_text()
