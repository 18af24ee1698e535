"""Why something was refused: the public list of reason codes, each with a stable name and one sentence.

Names are part of the `dead-letters` and `job-status` contracts and never change meaning; new ones may be added. The codes
of `schemas.codec.DecodeError` come first, because a record that can't be read is refused by the same door.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from schemas.codec import DecodeError


class Reason(Enum):
    """Reason codes of refusals."""

    NO_VALUE = "no_value"
    MALFORMED_HEADER = "malformed_header"
    MISSING_HEADER = "missing_header"
    UNSUPPORTED_VERSION = "unsupported_version"
    UNKNOWN_TYPE = "unknown_type"
    MALFORMED_TIME = "malformed_time"
    MALFORMED_JSON = "malformed_json"
    INVALID_FIELD = "invalid_field"
    WRONG_TOPIC = "wrong_topic"
    KEY_NOT_ID = "key_not_id"
    CONFLICTING_CONTENT = "conflicting_content"
    ID_TAKEN = "id_taken"
    CLOCK_SKEW = "clock_skew"
    UNKNOWN_CLUSTER = "unknown_cluster"
    UNKNOWN_POOL = "unknown_pool"
    UNKNOWN_GPU_MODEL = "unknown_gpu_model"
    SPEED_UNUSABLE = "speed_unusable"
    UNKNOWN_TEAM = "unknown_team"
    SIZE_REPEATED = "size_repeated"
    SIZE_NOT_POWER_OF_TWO = "size_not_power_of_two"
    REQUESTED_SIZE_NOT_OFFERED = "requested_size_not_offered"
    SIZE_EXCEEDS_POOL = "size_exceeds_pool"
    MEMORY_EXCEEDS_GPU = "memory_exceeds_gpu"
    TIME_LIMIT_TOO_LONG = "time_limit_too_long"
    RESTART_CONTRADICTION = "restart_contradiction"
    CHECKPOINT_WAIT_TOO_LONG = "checkpoint_wait_too_long"
    COMMAND_OR_TEMPLATE = "command_or_template"
    COMMAND_UNUSABLE = "command_unusable"
    ENVIRONMENT_UNUSABLE = "environment_unusable"
    SPEC_TOO_LARGE = "spec_too_large"
    FLOOR_EXCEEDS_PEAK = "floor_exceeds_peak"
    PEAK_EXCEEDS_POOL = "peak_exceeds_pool"
    SWITCH_MAX_ABSURD = "switch_max_absurd"
    UNKNOWN_ID = "unknown_id"
    NOT_A_JOB = "not_a_job"
    JOB_CANCELLED = "job_cancelled"
    NOTHING_TO_CHANGE = "nothing_to_change"

    @property
    def sentence(self) -> str:
        """One sentence for people: what it means in general. A refusal's detail names the field and what to do."""
        return SENTENCES[self]


SENTENCES: dict[Reason, str] = {
    Reason.NO_VALUE: "The record has no value; nothing can be asked for with a tombstone.",
    Reason.MALFORMED_HEADER: "A header is not UTF-8 text.",
    Reason.MISSING_HEADER: "A required CloudEvents header (ce_specversion, ce_id, ce_source, ce_type) is missing.",
    Reason.UNSUPPORTED_VERSION: "The CloudEvents version is not 1.0.",
    Reason.UNKNOWN_TYPE: "The event type is not one of this system's.",
    Reason.MALFORMED_TIME: "ce_time is not an RFC 3339 time with a zone.",
    Reason.MALFORMED_JSON: "The value is not JSON.",
    Reason.INVALID_FIELD: "A field is missing, of the wrong type or out of its range; the JSON Schema of the type says what fits.",
    Reason.WRONG_TOPIC: "Events of this type don't travel on job-events.",
    Reason.KEY_NOT_ID: "The record's key must be the job or application id, so that all its events stay in order.",
    Reason.CONFLICTING_CONTENT: "This id was let in before with other content.",
    Reason.ID_TAKEN: "A job and an application can't share an id.",
    Reason.CLOCK_SKEW: "The event is stamped too far in the future.",
    Reason.UNKNOWN_CLUSTER: "No such cluster is configured.",
    Reason.UNKNOWN_POOL: "The cluster has no such pool.",
    Reason.UNKNOWN_GPU_MODEL: "The cluster has no pool with GPUs of this model.",
    Reason.SPEED_UNUSABLE: "A job that tells speeds tells one for every pool it accepts, and for nothing else.",
    Reason.UNKNOWN_TEAM: "The team is not among those that may submit.",
    Reason.SIZE_REPEATED: "A block size is offered twice.",
    Reason.SIZE_NOT_POWER_OF_TWO: "Every offered block size must be a power of two.",
    Reason.REQUESTED_SIZE_NOT_OFFERED: "The requested size must be one of the offered sizes.",
    Reason.SIZE_EXCEEDS_POOL: "No acceptable pool can ever form a block of any offered size.",
    Reason.MEMORY_EXCEEDS_GPU: "No acceptable pool has GPUs with that much memory.",
    Reason.TIME_LIMIT_TOO_LONG: "The time limit is longer than this installation allows.",
    Reason.RESTART_CONTRADICTION: "The restart mode and the number of attempts contradict each other.",
    Reason.CHECKPOINT_WAIT_TOO_LONG: "The awaited time for a checkpoint is longer than a stop may take.",
    Reason.COMMAND_OR_TEMPLATE: "Exactly one of command and template must say what runs.",
    Reason.COMMAND_UNUSABLE: "The command or working directory can't be given to a process.",
    Reason.ENVIRONMENT_UNUSABLE: "The environment can't be given to a process.",
    Reason.SPEC_TOO_LARGE: "The specification is larger than a decision can carry.",
    Reason.FLOOR_EXCEEDS_PEAK: "An application's floor is above its peak.",
    Reason.PEAK_EXCEEDS_POOL: "No acceptable pool has as many GPUs as the application's peak.",
    Reason.SWITCH_MAX_ABSURD: "More switches per step than the application could ever make.",
    Reason.UNKNOWN_ID: "No job or application with this id was let in, or so long ago that intake has forgotten it.",
    Reason.NOT_A_JOB: "Only jobs can be changed; register an application again instead.",
    Reason.JOB_CANCELLED: "The job was cancelled before.",
    Reason.NOTHING_TO_CHANGE: "The change names no field.",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal as a value: the code, the field it is about (in the event's own words), and a sentence that says what to do."""

    reason: Reason
    field: str
    detail: str

    @property
    def sentence(self) -> str:
        """The detail with its field, unless it names it already."""
        return self.detail if not self.field or self.field in self.detail else f"{self.field}: {self.detail}"


def unreadable(error: DecodeError) -> Refusal:
    """The refusal of a record that could not be decoded. msgspec ends its message with the field's path."""
    _, found, path = error.detail.rpartition(" - at `$.")
    field = path.removesuffix("`") if found else ""
    return Refusal(Reason(error.code), field, f"{error.detail}. {Reason(error.code).sentence}")
