"""How busy a card's tensor units were, by NVML's GPU performance monitoring (GPM; Hopper and later).

GPM gives figures of the time between two samples. Each reading takes one, compares it with the one before and keeps it: nothing waits,
and nobody else's profiling is disturbed. Source: https://docs.nvidia.com/deploy/nvml-api/group__GPM.html
"""

from __future__ import annotations

import contextlib
from typing import Any

from agent.backends.nvml_lib import Nvml


class TensorUse:
    """Of one card. A card or driver without GPM tells nothing, and is asked no more."""

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        support = nvml.ask_any("nvmlGpmQueryDeviceSupport", handle)
        self._is_told = bool(support is not None and support.isSupportedDevice)
        self._before: Any = None

    def read(self) -> int | None:
        """In % of the time since the last reading; None at the first one and where it is not told."""
        if not self._is_told:
            return None
        sample = self._nvml.ask_any("nvmlGpmSampleAlloc")
        if sample is None:
            return None
        try:
            self._nvml.raw.nvmlGpmSampleGet(self._handle, sample)
        except self._nvml.raw.NVMLError:
            self._free(sample)
            return None
        before, self._before = self._before, sample
        if before is None:
            return None
        try:
            return self._between(before, sample)
        finally:
            self._free(before)

    def _between(self, before: Any, after: Any) -> int | None:
        raw = self._nvml.raw
        asked = raw.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = raw.NVML_GPM_METRICS_GET_VERSION, 1
        asked.sample1, asked.sample2 = before, after
        asked.metrics[0].metricId = raw.NVML_GPM_METRIC_ANY_TENSOR_UTIL
        found = self._nvml.ask_any("nvmlGpmMetricsGet", asked)
        if found is None or found.metrics[0].nvmlReturn != raw.NVML_SUCCESS:
            return None
        value = float(found.metrics[0].value)
        return round(value) if value == value else None  # NaN is no figure

    def _free(self, sample: Any) -> None:
        with contextlib.suppress(self._nvml.raw.NVMLError):
            self._nvml.raw.nvmlGpmSampleFree(sample)

    def close(self) -> None:
        """Call while NVML is open."""
        before, self._before = self._before, None
        if before is not None:
            self._free(before)
