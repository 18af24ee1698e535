"""The soak: hundreds of thousands of numbered job events on the real stack, once undisturbed and once with kills in the middle.

    python -m bench.soak --events 300000          # both runs, the judgement, bench/results/soak.json
    python -m bench.soak --events 5000            # the same, small

Owns the script (what is published and how each job must end), the kills, and a judge that reads the topics by itself: every
accepted job has exactly one final state, the same in the script and in both runs; nothing ran twice or on a GPU of another
job; counts match; metered GPU time is what the executions say, to the millisecond.
Read next: `script.py`, `evidence.py`, `judge.py`, then `run.py`.
"""
