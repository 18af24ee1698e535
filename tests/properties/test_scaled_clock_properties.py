"""However the shared clock is bent, its lines meet: domain time is continuous and never runs backwards."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from services.runtime.scaled_clock import Line, _unpacked

lines = st.builds(
    Line,
    number=st.integers(1, 2**63),
    anchor_domain_us=st.integers(0, 2**52),
    anchor_monotonic_ns=st.integers(0, 2**62),
    speed=st.floats(1e-6, 1e6),
    paused=st.booleans(),
)


@given(lines)
def test_a_line_survives_the_file(line: Line):
    assert _unpacked(line.packed()) == line


@given(lines, st.integers(0, 47), st.integers(1, 255))
def test_a_damaged_line_is_never_believed(line: Line, at: int, flipped: int):
    data = bytearray(line.packed())
    data[at] ^= flipped
    assert at >= 44 or _unpacked(bytes(data)) != line  # the last four bytes are padding


@given(lines, st.lists(st.tuples(st.integers(0, 10**10), st.floats(1e-6, 1e6), st.booleans()), max_size=20))
def test_bent_lines_meet_and_rise(line: Line, bends: list[tuple[int, float, bool]]):
    now_ns = line.anchor_monotonic_ns
    latest_us = line.domain_us(now_ns)
    for passed_ns, speed, paused in bends:
        now_ns += passed_ns
        reached_us = line.domain_us(now_ns)
        assert reached_us >= latest_us
        line = replace(line, anchor_domain_us=reached_us, anchor_monotonic_ns=now_ns, speed=speed, paused=paused)
        assert line.domain_us(now_ns) == reached_us
        latest_us = reached_us
