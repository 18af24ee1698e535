"""From flags or a file to the events that upstream publishes. Pure: ids, times and trace ids come in as arguments.

Owns: what a person may leave out and what it then means. Refuses: validation beyond shape (intake is the one that decides;
its refusals come back as status).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from schemas.base import Event
from schemas.jobs import ApplicationRegistered, ApplicationSpec, JobCancelled, JobChanged, JobSpec, JobSubmitted
from schemas.messages import message
from schemas.records import Message
from services.console.errors import UsageError

SOURCE = "/gpugrid/console"
FILE_ENDINGS = (".json", ".jsonl", ".ndjson", ".toml")
SUBMISSIONS_MAX = 10_000
"""Per file: more than a person submits by hand; larger sets are published by a program."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a file or the flags may leave out. `new_id` makes an identifier from a kind."""

    team: str
    user: str
    now_ms: int
    new_id: Callable[[str], str]


def trace_id_of(traceparent: str) -> str:
    """The 32 hex digits that identify the trace, or "" if there is none."""
    parts = traceparent.split("-")
    return parts[1] if len(parts) >= 3 and len(parts[1]) == 32 else ""


def job_from_fields(fields: dict[str, Any], job_id: str | None, defaults: Defaults) -> JobSubmitted:
    """A submission from spec fields; team, user and id may be missing. UsageError names the field that is wrong."""
    filled = {"team": defaults.team, "user": defaults.user, **fields}
    try:
        spec = msgspec.convert(filled, JobSpec)
        name = job_id or defaults.new_id(spec.kind.value)
        return msgspec.convert({"job_id": name, "submitted_ms": defaults.now_ms, "spec": filled}, JobSubmitted)
    except msgspec.ValidationError as error:
        raise UsageError(f"This is no valid job: {error}.") from None


def events_of_document(text: bytes, name: str, defaults: Defaults) -> list[JobSubmitted | ApplicationRegistered]:
    """The submissions of a file: one object, a list, or JSON lines; TOML if its name ends so. UsageError says what is wrong."""
    documents = _documents(text, name)
    if not documents:
        raise UsageError(f"{name} holds no job.")
    if len(documents) > SUBMISSIONS_MAX:
        raise UsageError(f"{name} holds {len(documents)} jobs; at most {SUBMISSIONS_MAX} are sent at once.")
    return [_event(document, name, defaults) for document in documents]


def _documents(text: bytes, name: str) -> list[Any]:
    try:
        if name.endswith(".toml"):
            document: Any = msgspec.toml.decode(text)
            jobs = document.get("jobs")
            return jobs if isinstance(jobs, list) else [document]
        try:
            document = msgspec.json.decode(text)
        except msgspec.DecodeError:
            lines = [line for line in text.splitlines() if line.strip()]
            if len(lines) < 2:
                raise
            return [msgspec.json.decode(line) for line in lines]
        return document if isinstance(document, list) else [document]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        kind = "TOML" if name.endswith(".toml") else "JSON (one object, a list, or one object per line)"
        raise UsageError(f"{name} is not readable as {kind}: {error}.") from None


def _event(document: Any, name: str, defaults: Defaults) -> JobSubmitted | ApplicationRegistered:
    """An object with `spec` is a whole event; without, it is a spec with an optional `job_id` or `app_id` beside."""
    if not isinstance(document, dict):
        raise UsageError(
            f"{name}: a job is an object with fields such as kind and sizes, not {type(document).__name__}."
        )
    fields = dict(document)
    job_id, app_id = fields.pop("job_id", None), fields.pop("app_id", None)
    fields.pop("submitted_ms", None)
    fields.pop("registered_ms", None)
    spec = fields.pop("spec", None)
    if spec is None:
        spec = fields
    elif fields:
        raise UsageError(f"{name}: {', '.join(sorted(fields))} can't stand beside spec; an event has job_id and spec.")
    if app_id is not None:
        return _application(spec, app_id, name, defaults)
    return job_from_fields(spec, job_id, defaults)


def _application(spec: Any, app_id: Any, name: str, defaults: Defaults) -> ApplicationRegistered:
    filled = {"team": defaults.team, "user": defaults.user, **spec}
    body = {"app_id": app_id, "registered_ms": defaults.now_ms, "spec": filled}
    try:
        msgspec.convert(filled, ApplicationSpec)
        return msgspec.convert(body, ApplicationRegistered)
    except msgspec.ValidationError as error:
        raise UsageError(f"{name}: this is no valid application: {error}.") from None


def cancellation(job_id: str, cause: str, now_ms: int) -> JobCancelled:
    """The event that cancels a job or application."""
    return JobCancelled(job_id=job_id, cancelled_ms=now_ms, cause=cause)


def change(job_id: str, now_ms: int, *, priority: int | None, time_limit_s: float | None) -> JobChanged:
    """The event that changes a job. UsageError if nothing changes or a value is out of range."""
    if priority is None and time_limit_s is None:
        raise UsageError("Nothing to change: give --priority or --limit.")
    body = {"job_id": job_id, "changed_ms": now_ms, "priority": priority, "time_limit_s": time_limit_s}
    try:
        return msgspec.convert(body, JobChanged)
    except msgspec.ValidationError as error:
        raise UsageError(f"This change is not possible: {error}.") from None


def message_of(event: Event, *, key: str, event_id: str, time_ms: int, traceparent: str) -> Message:
    """The message an upstream system would send for the same event."""
    return message(event, key=key, id=event_id, source=SOURCE, time_ms=time_ms, traceparent=traceparent)


def key_of(event: JobSubmitted | ApplicationRegistered | JobCancelled | JobChanged) -> str:
    """Record key and id of what the event is about."""
    return event.app_id if isinstance(event, ApplicationRegistered) else event.job_id


def file_among(words: Sequence[str]) -> str | None:
    """The file that the words name, if they name one: a single `-` or a name that ends like a file of jobs."""
    if len(words) == 1 and (words[0] == "-" or words[0].endswith(FILE_ENDINGS)):
        return words[0]
    return None


def command_of(words: Sequence[str], command: str | None, template: str | None) -> list[str] | None:
    """What to run: the words, or `command` split like a shell does; None with a template. UsageError if not exactly one."""
    given = [bool(words), command is not None, template is not None]
    if sum(given) != 1:
        what = "Nothing to run" if not any(given) else "Too much to run"
        raise UsageError(f"{what}: give a file, or a command after --, or --command, or --template.")
    if command is None:
        return list(words) or None
    try:
        return shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--command {command!r} can't be split into words: {error}.") from None


def sizes_of(text: str) -> list[int]:
    """Block sizes from `2,4,8`. UsageError for anything but powers of two."""
    try:
        sizes = sorted({int(part) for part in text.replace(" ", "").split(",") if part})
    except ValueError:
        sizes = []
    if not sizes or sizes[0] < 1:
        raise UsageError(f"--gpus {text!r}: give sizes the job can use, for example 4 or 2,4,8.")
    if odd := [size for size in sizes if size & (size - 1)]:
        below = 1 << (odd[0].bit_length() - 1)
        raise UsageError(
            f"--gpus {text!r}: blocks are powers of two; instead of {odd[0]} offer {below} or {2 * below}."
        )
    return sizes


def simulated_labels(sizes: Sequence[int], run_s: float | None) -> dict[str, str]:
    """The label that tells the simulated driver how long the job takes per size: `run_s` on the largest, in proportion below."""
    if run_s is None:
        return {}
    by_size = {str(size): run_s * max(sizes) / size for size in sizes}
    return {"simulated/run_s": msgspec.json.encode(by_size).decode()}


def numbers_of(pairs: Sequence[str]) -> dict[str, float]:
    """`name=number` pairs. UsageError for one that isn't."""
    found: dict[str, float] = {}
    for name, value in facts_of(pairs).items():
        try:
            found[name] = float(value)
        except ValueError:
            raise UsageError(f"{name}={value}: {value!r} is no number.") from None
    return found


def datasets_of(pairs: Sequence[str]) -> list[dict[str, Any]]:
    """`name` or `name=MiB` each, as `JobSpec.datasets` has them. UsageError for a size that is no whole number."""
    found: list[dict[str, Any]] = []
    for pair in pairs:
        name, _, size = pair.partition("=")
        if size and not size.isdecimal():
            raise UsageError(f"{pair}: {size!r} is no size in MiB.")
        found.append({"name": name, "size_mib": int(size or 0)})
    return found


def facts_of(pairs: Sequence[str]) -> dict[str, str]:
    """`name=value` pairs. UsageError for one without a name or `=`."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"{pair!r} is no NAME=VALUE.")
        found[name] = value
    return found
