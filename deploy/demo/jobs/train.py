"""What the demo's jobs run: looks like a training run from outside, and sleeps instead of computing.

It prints what such programs print (losses, a progress bar, colours, Chinese), leaves files in $NEBULA_ARTIFACTS, saves a
checkpoint and leaves on SIGUSR1, and can end as badly as the real ones do. Standard library only, next to no CPU.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import sys
import time
from pathlib import Path
from types import FrameType

BAR = 24
GREEN, YELLOW, CYAN, BOLD, DIM, OFF = "\x1b[32m", "\x1b[33m", "\x1b[36m", "\x1b[1m", "\x1b[2m", "\x1b[0m"
WORDS = {
    "en": {
        "start": "loading {data} … {count:,} samples, {cards} card(s)",
        "epoch": "epoch",
        "loss": "loss",
        "acc": "acc",
        "best": "best so far, checkpoint saved",
        "slow": "data loader is slow: {ms} ms a batch",
        "done": "done: best accuracy {acc:.2%} after {epochs} epochs",
        "leave": "told to stop: checkpoint saved at epoch {epoch}, leaving",
    },
    "zh": {
        "start": "正在加载 {data} … 共 {count:,} 条样本，{cards} 张卡",
        "epoch": "轮次",
        "loss": "损失",
        "acc": "准确率",
        "best": "目前最好，已保存检查点",
        "slow": "数据读取偏慢：每批 {ms} 毫秒",
        "done": "训练完成：{epochs} 轮后最高准确率 {acc:.2%}",
        "leave": "收到停止信号：已在第 {epoch} 轮保存检查点，退出",
    },
}


class Stopped(Exception):
    """SIGUSR1 came: save and leave."""


def on_stop(number: int, frame: FrameType | None) -> None:
    raise Stopped


def say(text: str) -> None:
    print(text, flush=True)


def bar(share: float) -> str:
    full = round(BAR * share)
    return f"{GREEN}{'━' * full}{OFF}{DIM}{'━' * (BAR - full)}{OFF} {share:4.0%}"


def artifact(name: str, text: str) -> None:
    folder = os.environ.get("NEBULA_ARTIFACTS")
    if folder:
        (Path(folder) / name).write_text(text, encoding="utf-8")


def attention(model: str) -> None:
    raise MemoryError(
        "CUDA out of memory. Tried to allocate 2.38 GiB. GPU 0 has a total capacity of 23.65 GiB of which 1.14 GiB is free. "
        f"Of the allocated memory 21.80 GiB is allocated by PyTorch for {model}. Try a smaller batch."
    )


def fail_oom(model: str) -> None:
    attention(model)


def fail_file(model: str) -> None:
    Path(f"/datasets/{model}/train.index").read_text(encoding="utf-8")


FAILURES = {"oom": fail_oom, "file": fail_file}


def train(options: argparse.Namespace) -> None:
    words, rng = WORDS[options.lang], random.Random(options.name)
    rank, cards = os.environ.get("NEBULA_RANK", "?"), [c for c in os.environ.get("NEBULA_GPU_LIST", "").split(",") if c]
    say(f"{BOLD}{options.name}{OFF}  {DIM}rank {rank}, CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')}{OFF}")
    for card in cards:
        say(f"  {CYAN}{card}{OFF}")
    say(words["start"].format(data=options.data, count=rng.randrange(40_000, 1_400_000), cards=len(cards)))
    pause_s = options.seconds / (options.epochs * options.steps)
    best, history = 0.0, ["epoch,loss,accuracy"]
    epoch = 0
    try:
        for epoch in range(1, options.epochs + 1):
            for step in range(1, options.steps + 1):
                time.sleep(pause_s)
                way = (epoch - 1 + step / options.steps) / options.epochs
                loss = 0.08 + 2.4 * math.exp(-4 * way) + rng.gauss(0, 0.02)
                say(f"{words['epoch']} {epoch:>3}/{options.epochs} {bar(step / options.steps)}  {words['loss']} {YELLOW}{loss:.4f}{OFF}")
                if options.fail and way > 0.4:
                    FAILURES[options.fail](options.name)
            accuracy = 0.97 - 0.6 * math.exp(-4 * epoch / options.epochs) + rng.gauss(0, 0.004)
            history.append(f"{epoch},{loss:.4f},{accuracy:.4f}")
            note = ""
            if accuracy > best:
                best = accuracy
                checkpoint_save(options.checkpoint, epoch)
                note = f"  {GREEN}✓ {words['best']}{OFF}"
            say(f"{words['epoch']} {epoch:>3}  {words['acc']} {BOLD}{accuracy:.2%}{OFF}{note}")
            if rng.random() < 0.08:
                say(f"{YELLOW}⚠ {words['slow'].format(ms=rng.randrange(180, 420))}{OFF}")
    except Stopped:
        checkpoint_save(options.checkpoint, epoch)
        say(words["leave"].format(epoch=epoch))
        sys.exit(0)
    artifact("metrics.json", json.dumps({"best_accuracy": round(best, 4), "epochs": options.epochs}, indent=2) + "\n")
    artifact("history.csv", "\n".join(history) + "\n")
    say(f"{GREEN}{words['done'].format(acc=best, epochs=options.epochs)}{OFF}")


def checkpoint_save(path: str | None, epoch: int) -> None:
    """Aside and renamed: a reader sees a whole checkpoint or none."""
    if path:
        aside = Path(f"{path}.new")
        aside.write_text(json.dumps({"epoch": epoch}), encoding="utf-8")
        aside.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="what is trained")
    parser.add_argument("--data", default="imagenet-1k")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=4, help="lines an epoch")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long all of it takes")
    parser.add_argument("--lang", choices=sorted(WORDS), default="en")
    parser.add_argument("--fail", choices=sorted(FAILURES))
    parser.add_argument("--checkpoint", metavar="FILE")
    options = parser.parse_args()
    signal.signal(signal.SIGUSR1, on_stop)
    train(options)


if __name__ == "__main__":
    main()
