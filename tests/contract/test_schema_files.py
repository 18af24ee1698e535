"""The frozen files are what the structs say, good and bad examples are judged alike by struct and schema; and the checks bite."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas import generated, json_schema
from schemas.base import Event
from schemas.codec import DecodeError, decode_payload, encode_payload
from schemas.event_table import filled
from schemas.registry import TYPES
from schemas.topics import BY_NAME, TOPICS
from schemas.yaml_writer import to_yaml
from tests.contract.random_events import events
from tests.contract.schema_checks import payload_problems, refused_by_all, schema_problems

CASES = [
    pytest.param(name, kind, file, id=f"{name}/{kind}/{file}")
    for name in TYPES
    for kind in ("valid", "invalid")
    for file in generated.examples(name, kind)
]


def frozen(name: str) -> Any:
    return json.loads((generated.PACKAGE / "json" / json_schema.file_name(name)).read_bytes())


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the contract's files that a test may spoil."""
    for folder in ("json", "examples"):
        shutil.copytree(generated.PACKAGE / folder, tmp_path / "schemas" / folder)
    shutil.copy(generated.PACKAGE / "asyncapi.yaml", tmp_path / "schemas")
    (tmp_path / "docs").mkdir()
    shutil.copy(generated.PACKAGE.parent / generated.DOCUMENT, tmp_path / "docs")
    return tmp_path / "schemas"


def test_the_files_are_what_the_structs_say() -> None:
    found = "".join(generated.differences())
    assert found == "", f"run `python -m schemas write` and review the diff:\n{found[:3000]}"


def test_an_untouched_copy_shows_no_difference(copied: Path) -> None:
    assert list(generated.differences(copied)) == []


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("json/job.submitted.v1.schema.json", '"maximum": 100', '"maximum": 101'),
        ("asyncapi.yaml", 'address: "jobs"', 'address: "tasks"'),
        ("../docs/events.md", "| `demand` |", "| `demands` |"),
    ],
)
def test_the_drift_check_sees_any_changed_file_and_write_mends_it(copied: Path, file: str, old: str, new: str) -> None:
    path = copied / file
    path.write_text(path.read_text().replace(old, new))
    (found,) = generated.differences(copied)
    assert new in found
    assert generated.write(copied) == [copied.parent / Path("schemas", file) if ".." not in file else path.resolve()]
    assert list(generated.differences(copied)) == []


def test_the_drift_check_sees_missing_and_left_over_files(copied: Path) -> None:
    (copied / "json" / "job.submitted.v1.schema.json").unlink()
    (copied / "json" / "job.forgotten.v1.schema.json").write_text("{}")
    assert len(list(generated.differences(copied))) == 2
    generated.write(copied)
    assert list(generated.differences(copied)) == []


def test_an_event_without_examples_is_an_error_that_says_where_to_put_one(copied: Path) -> None:
    shutil.rmtree(copied / "examples" / "demand.observed.v1" / "invalid")
    generated.wanted(copied)  # only valid ones are needed to generate
    with pytest.raises(generated.ExampleError, match=r"schemas/examples/demand\.observed\.v1/invalid"):
        generated.examples("demand.observed.v1", "invalid", copied)


def test_a_document_without_markers_is_an_error_that_says_so() -> None:
    with pytest.raises(ValueError, match="markers"):
        filled("# Events\n")


def test_the_command_finds_nothing_on_a_clean_tree() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "schemas", "check"], capture_output=True, text=True, cwd=generated.PACKAGE.parent
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", TYPES)
def test_every_schema_is_one_in_both_dialects_and_names_itself(name: str) -> None:
    schema = frozen(name)
    assert schema_problems(schema) == []
    assert (schema["$id"], schema["title"]) == (f"urn:gpugrid:event:{name}", name)
    assert schema["description"]


def test_the_schema_check_rejects_a_planted_bad_schema() -> None:
    schema = frozen("job.submitted.v1")
    schema["properties"]["job_id"]["maxLength"] = "many"
    assert len(schema_problems(schema)) == 2


@pytest.mark.parametrize(("name", "kind", "file"), CASES)
def test_struct_and_schema_judge_every_example_alike(name: str, kind: str, file: str) -> None:
    example = generated.examples(name, kind)[file]
    payload = json.dumps(example).encode()
    if kind == "invalid":
        with pytest.raises(DecodeError) as refused:
            decode_payload(name, payload)
        assert refused.value.code == "invalid_field"
        assert refused_by_all(frozen(name), example)
        return
    event = decode_payload(name, payload)
    again = encode_payload(event)
    assert decode_payload(name, again) == event
    assert encode_payload(decode_payload(name, again)) == again
    for said in (example, json.loads(again)):
        assert payload_problems(frozen(name), said) == []


def test_the_example_check_rejects_a_planted_bad_example() -> None:
    example = generated.examples("job.submitted.v1", "valid")["minimal.json"]
    example["spec"]["priority"] = 0
    assert len(payload_problems(frozen("job.submitted.v1"), example)) == 2
    assert refused_by_all(frozen("job.submitted.v1"), example)


def test_examples_are_there_for_every_event_and_for_nothing_else() -> None:
    assert sorted(path.name for path in (generated.PACKAGE / "examples").iterdir()) == sorted(TYPES)
    assert len(generated.examples("job.submitted.v1", "valid")) >= 3
    assert len(generated.examples("job.submitted.v1", "invalid")) >= 10


@pytest.mark.parametrize("name", TYPES)
def test_random_structs_validate_and_come_back(name: str) -> None:
    schema = frozen(name)

    @settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow], deadline=None)
    @given(events(TYPES[name][0]))
    def judged(event: Event) -> None:
        payload = encode_payload(event)
        assert payload_problems(schema, json.loads(payload)) == []
        back = decode_payload(name, payload)
        assert encode_payload(back) == payload

    judged()


def tuples_in(struct: type[Any]) -> list[str]:
    """Fixed-length tuples anywhere in a struct: draft-07 would refuse valid messages."""
    found: list[str] = []
    seen: set[str] = set()

    def walk(kind: Any, path: str) -> None:
        if isinstance(kind, msgspec.inspect.TupleType):
            found.append(path)
        if isinstance(kind, msgspec.inspect.StructType) and kind.cls.__name__ not in seen:
            seen.add(kind.cls.__name__)
            for field in kind.fields:
                walk(field.type, f"{path}.{field.name}")
        for name in ("item_type", "key_type", "value_type", "type"):
            if hasattr(kind, name):
                walk(getattr(kind, name), path)
        for inner in getattr(kind, "types", ()):
            walk(inner, path)

    walk(msgspec.inspect.type_info(struct), struct.__name__)
    return found


def test_no_event_has_a_fixed_length_tuple() -> None:
    assert [path for struct, _ in TYPES.values() for path in tuples_in(struct)] == []


def test_the_tuple_check_finds_a_planted_one() -> None:
    inner = msgspec.defstruct("Inner", [("at", list[tuple[int, str]])])
    planted = msgspec.defstruct("Planted", [("inner", dict[str, inner | None])])  # type: ignore[valid-type]
    assert tuples_in(planted) == ["Planted.inner.at"]


def test_events_are_named_by_version_and_say_what_they_are() -> None:
    for name, (struct, topic) in TYPES.items():
        assert name.rpartition(".")[2] == "v1"
        assert struct.__doc__
        assert topic in BY_NAME
        assert issubclass(struct, Event)


def test_every_topic_has_an_owner_a_key_readers_and_events() -> None:
    for topic in TOPICS:
        assert topic.owner in topic.writers
        assert topic.key
        assert topic.readers
        assert topic.carries
        assert [name for name, (_, carrier) in TYPES.items() if carrier == topic.name]


words = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["C", "Zl", "Zp"]), max_size=8)
json_data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=12,
)


@given(json_data)
def test_the_yaml_writer_says_what_a_real_parser_reads(data: Any) -> None:
    assert yaml.safe_load(to_yaml(data)) == data


@pytest.mark.parametrize("key", ["on", "No", "null", "1", "a b", "", "a:b", "$ref", "~", "é", "true", "-"])
def test_the_yaml_writer_keeps_awkward_keys_text(key: str) -> None:
    assert yaml.safe_load(to_yaml({key: {key: [key]}})) == {key: {key: [key]}}


def test_what_is_packed_holds_the_contract_files() -> None:
    """The wheel takes whole packages; nothing of the contract may be ignored by git, which the build respects."""
    files = [str(path) for path in (generated.PACKAGE / "json").iterdir()] + [str(generated.PACKAGE / "asyncapi.yaml")]
    files += [str(path) for path in (generated.PACKAGE / "examples").rglob("*.json")]
    done = subprocess.run(["git", "check-ignore", *files], capture_output=True, text=True, cwd=generated.PACKAGE.parent)
    if done.returncode == 128:
        pytest.skip("not a git checkout")
    assert done.stdout == ""
