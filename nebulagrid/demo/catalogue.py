"""The demo's jobs as data: who submits what. Pure.

The names are unique: a name tells the feeder whether a job of this recipe waits or runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nebulagrid.demo import JOBS

HOUR = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """``then``: what its owner does next: hold it (``why`` says for what), or cancel it once it runs."""

    owner: str  # a key of people.PEOPLE
    name: str
    seconds: float = 60
    args: tuple[str, ...] = ()
    ask: Mapping[str, Any] = field(default_factory=dict)
    argv: tuple[str, ...] = ()  # another program than train.py
    then: str = ""
    why: str = ""

    def fields(self, *, name: str, path: str) -> dict[str, Any]:
        """For ``NebulaClient.job_submit``. ``path``: the PATH on which the job finds its Python."""
        argv = self.argv or ("python", "train.py", name, "--seconds", f"{self.seconds:g}", *self.args)
        ask = {"gpu_count": 1, "workdir": str(JOBS), "env": {"PATH": path}, **self.ask}
        return {"name": name, "argv": list(argv), **ask}


def _long(hours: float, *args: str, epochs: int = 90) -> dict[str, Any]:
    """A run of hours with a line about every twelve seconds."""
    steps = max(1, round(hours * HOUR / epochs / 12))
    return {"seconds": hours * HOUR, "args": ("--epochs", str(epochs), "--steps", str(steps), *args)}


#: Always there: whichever of them neither waits nor runs is submitted again. In this order they find their places.
STANDING = (
    Recipe(owner="researcher", name="llama3-8b-lora", **_long(5, "--data", "sharegpt"), ask={"gpu_mem": "60G", "time": "6:00:00"}),
    Recipe(
        owner="researcher",
        name="vit-b16-ddp",
        **_long(4),
        ask={"gpu_count": 2, "gpu_mem": "24G", "time": "5:00:00", "project": "vision-lab"},
    ),
    Recipe(
        owner="lead",
        name="whisper-zh-2node",
        **_long(3, "--data", "wenetspeech", "--lang", "zh"),
        ask={"gpu_count": 2, "nodes": 2, "gpu_mem": "24G", "time": "4:00:00", "constraints": {"model": "RTX 4090"}},
    ),
    Recipe(
        owner="lead",
        name="glm4-9b-ascend",
        **_long(6, "--data", "alpaca-zh", "--lang", "zh"),
        ask={"gpu_mem": "24G", "time": "8:00:00", "constraints": {"vendor": "ascend"}},
    ),
    Recipe(
        owner="student",
        name="bert-中文情感分类",
        **_long(4, "--data", "chnsenticorp", "--lang", "zh"),
        ask={"gpu_mem": "10G", "time": "5:00:00", "constraints": {"model": "RTX 4090"}},
    ),
    Recipe(
        owner="researcher",
        name="sdxl-lora-portrait",
        **_long(3, "--data", "portraits-2k"),
        ask={"gpu_mem": "8G", "time": "4:00:00", "constraints": {"model": "RTX 4090"}, "project": "vision-lab"},
    ),
    Recipe(owner="lead", name="resnet50-cifar100", **_long(2, "--data", "cifar100"), ask={"gpu_mem": "6G", "time": "3:00:00"}),
    Recipe(
        owner="lead",
        name="数据清洗-commoncrawl",
        **_long(4, "--data", "commoncrawl-zh", "--lang", "zh", epochs=40),
        ask={"gpu_count": 0, "time": "6:00:00"},
    ),
    # These wait, each for a reason of its own.
    Recipe(owner="researcher", name="llama3-70b-qlora", **_long(2), ask={"gpu_mem": "72G", "time": "3:00:00"}),
    Recipe(
        owner="lead",
        name="vit-l-ddp",
        **_long(2),
        ask={"gpu_count": 4, "gpu_mem": "24G", "time": "3:00:00", "project": "vision-lab"},
    ),
    Recipe(owner="student", name="clip-图文检索", **_long(1, "--lang", "zh"), ask={"gpu_count": 2, "gpu_mem": "6G", "time": "2:00:00"}),
    Recipe(
        owner="lead",
        name="qwen2-72b-eval",
        **_long(1),
        ask={"gpu_mem": "80G", "time": "2:00:00"},
        then="hold",
        why="dataset is still downloading · 数据集还在下载",
    ),
)

#: Once, at the first start: what has happened before you came.
HISTORY = (
    Recipe(
        owner="researcher", name="mnist-smoke", seconds=2, args=("--epochs", "2", "--data", "mnist"), ask={"gpu_mem": "4G", "time": "10m"}
    ),
    Recipe(
        owner="student",
        name="gpt2-small-bs64",
        seconds=4,
        args=("--epochs", "5", "--fail", "oom"),
        ask={"gpu_mem": "8G", "time": "30m"},
    ),
    Recipe(
        owner="lead",
        name="分词器-词表",
        seconds=5,
        args=("--epochs", "3", "--data", "wudao", "--lang", "zh"),
        ask={"gpu_count": 0, "time": "30m"},
    ),
    Recipe(owner="researcher", name="typo-in-program", argv=("pyhton", "train.py"), ask={"gpu_mem": "4G", "time": "10m"}),
    Recipe(
        owner="researcher", name="swin-t-finetune", seconds=6, args=("--epochs", "4", "--fail", "file"), ask={"gpu_mem": "8G", "time": "2h"}
    ),
    Recipe(
        owner="student", name="dcgan-anime", seconds=600, args=("--epochs", "60"), ask={"gpu_mem": "6G", "time": "1:00:00"}, then="cancel"
    ),
    Recipe(
        owner="researcher",
        name="sm120-kernel-check",
        seconds=5,
        args=("--epochs", "3", "--data", "synthetic"),
        ask={"gpu_mem": "4G", "time": "30m", "constraints": {"arch": "sm_120"}},
    ),
    Recipe(
        owner="lead", name="sweep-lr-3e-4", seconds=60, args=("--epochs", "20", "--steps", "2"), ask={"gpu_mem": "6G", "time_limit_s": 6}
    ),
)

#: One every few minutes, over and over.
PASSING = (
    Recipe(owner="researcher", name="eval-checkpoint", seconds=90, ask={"gpu_mem": "6G", "time": "30m"}),
    Recipe(owner="lead", name="oneapi-bench", seconds=70, ask={"gpu_mem": "12G", "time": "30m", "constraints": {"vendor": "intel"}}),
    Recipe(
        owner="researcher",
        name="ablation-dropout",
        seconds=120,
        args=("--epochs", "20"),
        ask={"gpu_mem": "8G", "time": "1h", "constraints": {"labels": {"rack": "r2"}, "cuda_min": "12.2"}},
    ),
    Recipe(
        owner="student", name="课程作业-lenet", seconds=60, args=("--lang", "zh", "--data", "mnist"), ask={"gpu_count": 0, "time": "20m"}
    ),
    Recipe(owner="lead", name="dedup-corpus", seconds=80, ask={"gpu_count": 0, "time": "30m"}),
    Recipe(owner="researcher", name="unet-seg-bs32", seconds=40, args=("--fail", "oom"), ask={"gpu_mem": "8G", "time": "30m"}),
    Recipe(
        owner="researcher",
        name="export-onnx",
        seconds=45,
        args=("--epochs", "2"),
        ask={"gpu_mem": "4G", "time": "20m", "cpus": "0.25", "host_mem": "512M"},
    ),
    Recipe(owner="lead", name="tts-试听样本", seconds=100, args=("--lang", "zh"), ask={"gpu_mem": "6G", "time": "30m"}),
)
