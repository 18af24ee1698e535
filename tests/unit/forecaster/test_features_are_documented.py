"""The page on forecasting names every feature that the model sees, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from services.forecaster.core.features import NAMES

PAGE = Path(__file__).parents[3] / "docs" / "forecasting.md"


def test_the_table_of_features_is_what_the_code_uses() -> None:
    table = PAGE.read_text(encoding="utf-8").split("### Features")[1].split("### Measured")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(NAMES)
