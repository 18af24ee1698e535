"""AsyncAPI's own parser accepts schemas/asyncapi.yaml, understands all of it, and rejects planted faults."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from schemas import generated
from schemas.registry import TYPES
from schemas.topics import TOPICS
from tests.contract.asyncapi_parser import ParserMissingError, installed_packages, judged

DOCUMENT = generated.PACKAGE / "asyncapi.yaml"

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("asyncapi")]


@pytest.fixture(scope="module")
def packages() -> Path:
    return installed_packages()


FAULTS = {
    "version": ("asyncapi.yaml", 'asyncapi: "3.0.0"', 'asyncapi: "3.0"'),
    "channel": ("asyncapi.yaml", '"#/channels/jobs"', '"#/channels/tasks"'),
    "schema file": ("asyncapi.yaml", "./json/job.submitted.v1.schema.json", "./json/job.imagined.v1.schema.json"),
    "action": ("asyncapi.yaml", 'action: "send"', 'action: "shout"'),
    "payload schema": ("json/job.submitted.v1.schema.json", '"type": "object"', '"type": "objekt"'),
}
"""What is planted: file, what is there, what is put there instead."""


def planted(folder: Path, fault: str) -> Path:
    """A copy of the document with one fault."""
    shutil.copytree(generated.PACKAGE / "json", folder / "json")
    shutil.copy(DOCUMENT, folder)
    file, old, new = FAULTS[fault]
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1))
    return folder / DOCUMENT.name


def test_the_parser_accepts_the_document_and_understands_all_of_it(packages: Path) -> None:
    (found,) = judged(packages, [DOCUMENT])
    assert (found["errors"], found["warnings"]) == ([], [])
    assert found["channels"] == [topic.name for topic in TOPICS]
    assert found["messages"] == list(TYPES)
    expected = [f"{service}-sends-{topic.name}" for topic in TOPICS for service in topic.writers]
    expected += [f"{service}-receives-{topic.name}" for topic in TOPICS for service in topic.readers]
    assert sorted(found["operations"]) == sorted(expected)


def test_the_parser_rejects_each_planted_fault(packages: Path, tmp_path: Path) -> None:
    answers = judged(packages, [planted(tmp_path / fault, fault) for fault in FAULTS])
    assert [fault for fault, answer in zip(FAULTS, answers, strict=True) if not answer["errors"]] == []


def test_without_a_network_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUGRID_CACHE", str(tmp_path))
    unreachable = ("--registry=http://127.0.0.1:9/", "--fetch-retries=0", f"--cache={tmp_path / 'npm'}")
    with pytest.raises(ParserMissingError, match="connect to a network"):
        installed_packages(unreachable)
    assert not list((tmp_path / "asyncapi").iterdir())  # nothing half-done is left behind
