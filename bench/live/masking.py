"""What it costs to mask secrets in what jobs print.

python -m bench.live.masking [--rounds 5] [--json]

Many secrets of many lines, and texts of 256 KiB: one without a secret in it, one of nothing but secrets, and one that is a single letter
like the secret itself. ``…_ms`` is the quickest of several rounds.
"""

from __future__ import annotations

import argparse
import json
import random
import string
import time

from quotas.masking import Masks

SECRETS, LINES, LETTERS = 50, 400, 16
SIZE = 256 * 1024


def texts() -> tuple[list[str], dict[str, bytes]]:
    rng = random.Random(1)
    letters = string.ascii_letters + string.digits
    secrets = ["\n".join("".join(rng.choices(letters, k=LETTERS)) for _ in range(LINES)) for _ in range(SECRETS)]
    return secrets, {
        "other": "".join(rng.choices(letters + " \n", k=SIZE)).encode(),
        "secrets": "\n".join(secrets).encode()[:SIZE],
    }


def quickest_ms(masks: Masks, text: bytes, *, rounds: int) -> float:
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        masks.take(text, is_last=True)
        took.append(time.perf_counter() - began)
    return round(min(took) * 1000, 2)


def measure(*, rounds: int) -> dict[str, float]:
    secrets, by_name = texts()
    masks = Masks(secrets)
    found = {f"masking_{name}_ms": quickest_ms(masks, text, rounds=rounds) for name, text in by_name.items()}
    return found | {"masking_repeated_ms": quickest_ms(Masks(["a" * 32 * 1024]), b"a" * SIZE, rounds=rounds)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.live.masking", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = measure(rounds=args.rounds)
    print(json.dumps(found) if args.json else "\n".join(f"{name:<22} {value:8.2f}" for name, value in found.items()))


if __name__ == "__main__":
    main()
