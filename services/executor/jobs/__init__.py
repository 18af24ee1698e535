"""For people who write jobs: `gpugrid_job.py`, a helper to copy, and `train_numpy.py`, a training job that uses it.

Both run on their own: nothing here imports gpugrid, and nothing in gpugrid imports them. Read next: `docs/jobs.md`.
"""
