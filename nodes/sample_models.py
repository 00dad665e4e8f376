"""What is kept of the figures over time: cards, nodes, the pool, and the programs of jobs.

One table a subject, three levels in it: RAW as they were taken (``SAMPLE_EVERY_S``), MINUTE and HOUR rolled up from the
level before. ``at`` is Unix time by the server's clock, the begin of the step, as a whole number: buckets are made by
division, and in SQLite a time as text would be four times as wide. A figure that is not told is NULL, never 0; extremes
(``…_max…``, ``…_min…``) are NULL at RAW, where the figure itself is both.

INVARIANT (unique constraints): a subject has one row for each level and step, so a repeated tick or roll-up changes nothing.
Rows are written by nodes/samples.py only.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class Level(models.IntegerChoices):
    RAW = 0, _("as taken")
    MINUTE = 1, _("a minute")
    HOUR = 2, _("an hour")


def _figure(name: str) -> models.PositiveIntegerField[int | None, int | None]:
    return models.PositiveIntegerField(name, null=True)


class Sample(models.Model):
    """``n`` = how many RAW rows are in it."""

    level = models.PositiveSmallIntegerField(_("level"), choices=Level.choices, default=Level.RAW)
    at = models.BigIntegerField(_("at, Unix time"))
    n = models.PositiveSmallIntegerField(_("samples in it"), default=1)

    class Meta:
        abstract = True


class GpuSample(Sample):
    gpu = models.ForeignKey("nodes.Gpu", verbose_name=_("GPU"), on_delete=models.CASCADE, related_name="+", db_index=False)
    used_mib = _figure(_("memory used, MiB"))
    used_max_mib = _figure(_("memory used at most, MiB"))
    util_pct = _figure(_("use, %"))
    util_min_pct = _figure(_("use at least, %"))
    util_max_pct = _figure(_("use at most, %"))
    mem_util_pct = _figure(_("memory traffic, %"))
    temp_c = _figure(_("temperature, °C"))
    temp_max_c = _figure(_("temperature at most, °C"))
    power_w = _figure(_("power, W"))
    power_max_w = _figure(_("power at most, W"))
    fan_pct = _figure(_("fan, %"))
    core_mhz = _figure(_("core clock, MHz"))
    core_min_mhz = _figure(_("core clock at least, MHz"))
    mem_mhz = _figure(_("memory clock, MHz"))
    foreign_mib = _figure(_("memory of no job, MiB"))
    throttled_pct = _figure(_("share of time slowed down, %"))

    class Meta:
        verbose_name = _("GPU sample")
        verbose_name_plural = _("GPU samples")
        constraints = (models.UniqueConstraint(fields=("gpu", "level", "at"), name="gpusample_once"),)
        indexes = (models.Index(fields=("level", "at"), name="gpusample_level_at"),)

    def __str__(self) -> str:
        return f"GPU {self.gpu_id} at {self.at}"


class NodeSample(Sample):
    """A machine: its own processors and memory, and its cards together."""

    node = models.ForeignKey("nodes.Node", verbose_name=_("node"), on_delete=models.CASCADE, related_name="+", db_index=False)
    cpu_pct = _figure(_("CPU, %"))
    cpu_max_pct = _figure(_("CPU at most, %"))
    memory_mib = _figure(_("main memory used, MiB"))
    memory_max_mib = _figure(_("main memory used at most, MiB"))
    disk_free_mib = _figure(_("disk free, MiB"))
    util_pct = _figure(_("use of its cards, %"))
    used_mib = _figure(_("memory used on its cards, MiB"))
    power_w = _figure(_("power of its cards, W"))

    class Meta:
        verbose_name = _("node sample")
        verbose_name_plural = _("node samples")
        constraints = (models.UniqueConstraint(fields=("node", "level", "at"), name="nodesample_once"),)
        indexes = (models.Index(fields=("level", "at"), name="nodesample_level_at"),)

    def __str__(self) -> str:
        return f"node {self.node_id} at {self.at}"


class PoolSample(Sample):
    """All cards together; sums are of the cards that told the figure."""

    cards = _figure(_("cards"))
    told = _figure(_("cards that report"))
    busy = _figure(_("cards in use"))
    busy_max = _figure(_("cards in use at most"))
    util_pct = _figure(_("use, %"))
    used_mib = _figure(_("memory used, MiB"))
    held_mib = _figure(_("memory given to jobs, MiB"))
    total_mib = _figure(_("memory, MiB"))
    power_w = _figure(_("power, W"))

    class Meta:
        verbose_name = _("pool sample")
        verbose_name_plural = _("pool samples")
        constraints = (models.UniqueConstraint(fields=("level", "at"), name="poolsample_once"),)

    def __str__(self) -> str:
        return f"pool at {self.at}"


class RankSample(Sample):
    """What the processes of one rank (``42.1.0``) hold and use of one card, as the driver lists it."""

    rank = models.CharField(_("rank"), max_length=48)
    gpu = models.ForeignKey("nodes.Gpu", verbose_name=_("GPU"), on_delete=models.CASCADE, related_name="+", db_index=False)
    used_mib = _figure(_("memory used, MiB"))
    used_max_mib = _figure(_("memory used at most, MiB"))
    util_pct = _figure(_("use, %"))

    class Meta:
        verbose_name = _("rank sample")
        verbose_name_plural = _("rank samples")
        constraints = (models.UniqueConstraint(fields=("rank", "gpu", "level", "at"), name="ranksample_once"),)
        indexes = (models.Index(fields=("level", "at"), name="ranksample_level_at"),)

    def __str__(self) -> str:
        return f"{self.rank} on GPU {self.gpu_id} at {self.at}"
