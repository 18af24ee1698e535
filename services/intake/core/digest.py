"""Content digests: two submissions are the same iff what they ask for is the same, whatever the spelling.

And, for the same reason, traces: an event that brings none gets one that a repetition gets again.
"""

from __future__ import annotations

from hashlib import sha256

from msgspec import Struct

from schemas.codec import encode_payload

DIGEST_CHARACTERS = 32
"""128 bits: no two contents of one id will ever share it by accident."""


def content_digest(content: Struct) -> str:
    """Of a specification after decoding: key order, white space, spelled-out defaults and unknown fields don't count.

    Neither does the submitter's time stamp, so that a retry stamped anew is still the same request.
    """
    return sha256(encode_payload(content)).hexdigest()[:DIGEST_CHARACTERS]


def new_trace(event: Struct) -> str:
    """A `traceparent` for an event that came without one, so that its job can be followed from here on."""
    digest = sha256(encode_payload(event)).hexdigest()
    return f"00-{digest[:32]}-{digest[32:48]}-01"
