"""A small training job that really checkpoints: `python train_numpy.py --steps 2000 --folder /data/run-7`.

A two-layer network learns a fixed function by stochastic gradient descent with momentum. A step depends only on the weights, the
velocity and its own number (its batch is drawn from a generator seeded with that number), so a run that was killed and resumed from
any checkpoint ends with the same weights, bit for bit, as one that was never disturbed. Prints their digest at the end.
"""

import argparse
import hashlib
import os
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from gpugrid_job import Job

INPUTS, HIDDEN, BATCH = 16, 64, 128
CHECKPOINTS_KEPT = 2


class Model:
    """Weights, velocity and the number of steps done."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.seed = seed
        self.step = 0
        self.weights = [rng.normal(0, 0.3, (INPUTS, HIDDEN)), rng.normal(0, 0.3, (HIDDEN, 1))]
        self.velocity = [np.zeros_like(each) for each in self.weights]

    def train(self) -> float:
        """One step; returns the loss before it."""
        rng = np.random.default_rng([self.seed, self.step])
        inputs = rng.normal(size=(BATCH, INPUTS))
        wanted = np.sin(inputs.sum(axis=1, keepdims=True))
        hidden = np.tanh(inputs @ self.weights[0])
        error = hidden @ self.weights[1] - wanted
        slopes = [inputs.T @ ((error @ self.weights[1].T) * (1 - hidden**2)) / BATCH, hidden.T @ error / BATCH]
        for index, slope in enumerate(slopes):
            self.velocity[index] = 0.9 * self.velocity[index] - 0.05 * slope
            self.weights[index] = self.weights[index] + self.velocity[index]
        self.step += 1
        return float((error**2).mean())

    def digest(self) -> str:
        return hashlib.sha256(b"".join(each.tobytes() for each in self.weights)).hexdigest()


def save(model: Model, folder: Path) -> Path:
    """Write everything a resumed run needs; the file is there whole or not at all."""
    path = folder / f"step-{model.step:08}.npz"
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as file:
        np.savez(
            file, step=model.step, w0=model.weights[0], w1=model.weights[1], v0=model.velocity[0], v1=model.velocity[1]
        )
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    for older in sorted(folder.glob("step-*.npz"))[:-CHECKPOINTS_KEPT]:
        older.unlink()
    return path


def load(path: str, seed: int) -> Model:
    model = Model(seed)
    with np.load(path) as saved:
        model.step = int(saved["step"])
        model.weights = [saved["w0"], saved["w1"]]
        model.velocity = [saved["v0"], saved["v1"]]
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--pause-s", type=float, default=0.0, help="after each step, to make a small job last")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    job = Job()
    model = load(job.resume_location, options.seed) if job.resume_location else Model(options.seed)
    print(f"starts at step {model.step}", flush=True)
    began_s, began_step = time.monotonic(), model.step
    while model.step < options.steps:
        loss = model.train()
        if options.pause_s:
            time.sleep(options.pause_s)
        fraction = model.step / options.steps
        if model.step % 20 == 0:
            rate = (model.step - began_step) * BATCH / max(1e-6, time.monotonic() - began_s)
            job.progress(step=model.step, fraction=fraction, samples_per_s=rate)
        if model.step % 500 == 0:
            print(f"step {model.step}, loss {loss:.4f}", flush=True)
        if job.checkpoint_wanted():
            job.saved(fraction, str(save(model, options.folder)))
    print(f"weights {model.digest()}", flush=True)


if __name__ == "__main__":
    main()
