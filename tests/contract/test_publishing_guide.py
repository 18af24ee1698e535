"""docs/publishing.md says nothing that isn't so: its records are let in, its HTTP body is taken, its list of reasons is complete."""

from __future__ import annotations

import re
import shlex
from typing import Any

from schemas import generated
from schemas.catalog import Catalog, Cluster, Pool
from schemas.codec import decode
from schemas.records import Headers, Now, Record
from services.intake.core.handler import IntakeHandler
from services.intake.core.refusals import Reason
from services.intake.core.requests import job_submitted

GUIDE = (generated.PACKAGE.parent / "docs" / "publishing.md").read_text()
POOL = Pool(gpus=64, node_gpus=8, gpu_model="H100", memory_mib=81_920)
CATALOG = Catalog(clusters={"c0": Cluster(partition=0, pools={"h100": POOL})}, default_cluster="c0")
NOW = Now(domain_ms=1_800_000_000_000, wall_ms=1_800_000_000_000)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


def topics_of_answer(key: bytes, value: bytes, headers: Headers) -> list[str]:
    record = Record("job-events", 0, 0, key, value, headers, NOW.wall_ms)
    return [message.topic for message in IntakeHandler(CATALOG).handle(record, NOW)]


def test_the_kcat_record_is_let_in() -> None:
    (block,) = [block for block in blocks("sh") if block.startswith("kcat -P")]
    command, rest = block.split("<<'JSON'\n")
    value = rest.removesuffix("JSON\n").strip()
    assert "\n" not in value
    words = shlex.split(command.replace("\\\n", " "))
    headers = tuple((name, text.encode()) for name, text in (word.split("=", 1) for word in words_after(words, "-H")))
    assert topics_of_answer(words_after(words, "-k")[0].encode(), value.encode(), headers) == ["jobs"]


def words_after(words: list[str], flag: str) -> list[str]:
    return [words[at + 1] for at, word in enumerate(words) if word == flag]


def test_the_cloudevents_example_runs_and_is_let_in() -> None:
    (block,) = blocks("python")
    scope: dict[str, Any] = {}
    exec(compile(block, "docs/publishing.md", "exec"), scope)
    record = scope["record"]
    headers = tuple(record.headers.items())
    assert decode(headers, record.value).type == "job.submitted.v1"
    assert topics_of_answer(record.key.encode(), record.value, headers) == ["jobs"]


def test_the_curl_body_is_taken() -> None:
    (block,) = [block for block in blocks("sh") if block.startswith("curl")]
    body = words_after(shlex.split(block.replace("\\\n", " ")), "-d")[0]
    assert job_submitted(body.encode(), job_id="unused", now_ms=0).job_id == "hello-1"


def test_every_reason_is_listed_with_its_sentence() -> None:
    listed = dict(re.findall(r"^\| `([a-z_]+)` \| (.*) \|$", GUIDE, re.MULTILINE))
    assert listed == {reason.value: reason.sentence for reason in Reason}
