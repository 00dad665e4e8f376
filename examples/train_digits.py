"""A real, small training run: a two-layer network learns to read handwritten digits, with NumPy alone.

    .venv/bin/python examples/train_digits.py [--epochs 12] [--sleep 0.2] [--checkpoint FILE]

It shows what a well-behaved job does. It prints each epoch's loss at once, writes a checkpoint that is whole or not
there, goes on from NEBULA_RESUME_FROM, and on SIGUSR1 (a polite stop) saves and leaves.
"""

from __future__ import annotations

import argparse
import gzip
import os
import signal
import sys
import tempfile
import time
from importlib.resources import files
from pathlib import Path

import numpy as np

DIGITS = files("client") / "data" / "digits.csv.gz"  # ships with the nebulagrid-agent package, so every node has it
HIDDEN, BATCH, RATE, MOMENTUM = 48, 32, 0.05, 0.9

Weights = dict[str, np.ndarray]


def digits_load() -> tuple[np.ndarray, np.ndarray]:
    """(n, 64) pixels scaled to 0–1 and (n,) labels."""
    with DIGITS.open("rb") as packed, gzip.open(packed, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float64)
    return table[:, :64] / 16.0, table[:, 64].astype(np.int64)


def forward(weights: Weights, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hidden activations (n, HIDDEN) and class probabilities (n, 10)."""
    hidden = np.maximum(x @ weights["w1"] + weights["b1"], 0.0)
    scores = hidden @ weights["w2"] + weights["b2"]
    scores -= scores.max(axis=1, keepdims=True)  # exp would overflow otherwise
    odds = np.exp(scores)
    return hidden, odds / odds.sum(axis=1, keepdims=True)


def gradients(weights: Weights, x: np.ndarray, y: np.ndarray) -> tuple[float, Weights]:
    """Mean cross-entropy of the batch and its gradient."""
    hidden, odds = forward(weights, x)
    rows = np.arange(len(y))
    loss = float(-np.log(odds[rows, y] + 1e-12).mean())
    error = odds.copy()
    error[rows, y] -= 1.0
    error /= len(y)
    below = (error @ weights["w2"].T) * (hidden > 0)
    return loss, {"w1": x.T @ below, "b1": below.sum(axis=0), "w2": hidden.T @ error, "b2": error.sum(axis=0)}


def checkpoint_save(path: Path, *, epoch: int, weights: Weights, velocity: Weights) -> None:
    """Write aside, flush to disk, rename: a reader never sees half a checkpoint, whatever kills this process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, epoch=epoch, **{f"w_{k}": v for k, v in weights.items()}, **{f"v_{k}": v for k, v in velocity.items()})
            file.flush()
            os.fsync(file.fileno())
        Path(aside).replace(path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def checkpoint_load(path: Path) -> tuple[int, Weights, Weights]:
    with np.load(path) as kept:
        names = ("w1", "b1", "w2", "b2")
        return int(kept["epoch"]), {k: kept[f"w_{k}"] for k in names}, {k: kept[f"v_{k}"] for k in names}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--sleep", type=float, default=0.2, help="seconds to rest after each epoch, to make it watchable")
    parser.add_argument("--checkpoint", type=Path, default=os.environ.get("NEBULA_CHECKPOINT") or None)
    options = parser.parse_args()

    stop_wanted = False

    def stop(signum: int, frame: object) -> None:
        nonlocal stop_wanted
        stop_wanted = True

    signal.signal(signal.SIGUSR1, stop)

    pixels, labels = digits_load()
    order = np.random.default_rng(0).permutation(len(labels))
    train, test = order[300:], order[:300]
    resume = os.environ.get("NEBULA_RESUME_FROM")
    if resume and Path(resume).is_file():
        done, weights, velocity = checkpoint_load(Path(resume))
        print(f"resumed after epoch {done} from {resume}", flush=True)
    else:
        rng = np.random.default_rng(1)
        done = 0
        weights = {
            "w1": rng.normal(0.0, np.sqrt(2 / 64), (64, HIDDEN)),
            "b1": np.zeros(HIDDEN),
            "w2": rng.normal(0.0, np.sqrt(2 / HIDDEN), (HIDDEN, 10)),
            "b2": np.zeros(10),
        }
        velocity = {name: np.zeros_like(value) for name, value in weights.items()}
    print(f"{len(train)} digits to learn from, {len(test)} to test on; GPUs: {os.environ.get('NEBULA_GPU_LIST') or 'none'}", flush=True)

    for epoch in range(done + 1, options.epochs + 1):
        # Seeded by the epoch: a resumed run takes the very steps that an uninterrupted one would have taken.
        shuffled = np.random.default_rng(epoch).permutation(train)
        losses = []
        for start in range(0, len(shuffled), BATCH):
            batch = shuffled[start : start + BATCH]
            loss, slope = gradients(weights, pixels[batch], labels[batch])
            losses.append(loss)
            for name in weights:
                velocity[name] = MOMENTUM * velocity[name] - RATE * slope[name]
                weights[name] = weights[name] + velocity[name]
        right = (forward(weights, pixels[test])[1].argmax(axis=1) == labels[test]).mean()
        print(f"epoch {epoch:>3}  loss {np.mean(losses):.4f}  test accuracy {100 * right:.1f} %", flush=True)
        if options.checkpoint:
            checkpoint_save(options.checkpoint, epoch=epoch, weights=weights, velocity=velocity)
        if stop_wanted:
            print(f"asked to stop: {'saved ' + str(options.checkpoint) if options.checkpoint else 'no checkpoint path given'}", flush=True)
            return 0
        time.sleep(options.sleep)
    return 0


if __name__ == "__main__":
    sys.exit(main())
