"""AMD cards through amdsmi, as two of its versions answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.backends.amd import AmdBackend, amdsmi_find
from agent.backends.base import BackendError
from agent.protocol import GpuHealth, LinkInfo
from tests.agent.amd_lab import AmdSmiLibraryException, FakeAmdsmi, card, old_card


def opened(smi: FakeAmdsmi) -> AmdBackend:
    backend = AmdBackend(smi)
    backend.initialize()
    return backend


def test_a_data_centre_card_of_rocm_6() -> None:
    backend = opened(FakeAmdsmi(card(0)))
    (gpu,) = backend.inventory().gpus
    assert (gpu.model, gpu.vendor, gpu.total_mib, gpu.compute_capability) == ("AMD Instinct MI300X", "amd", 196592, "gfx942")
    assert (gpu.pci_bus_id, gpu.pcie_gen, gpu.pcie_width, gpu.numa) == ("0000:0c:00.0", 5, 16, 0)
    (status,) = backend.get_status()
    assert (status.used_mib, status.util_pct, status.mem_util_pct, status.temp_c, status.power_w) == (283, 37, 12, 46, 144)
    assert (status.fan_pct, status.core_mhz, status.mem_mhz) == (None, 132, 900)  # it is cooled by the chassis
    assert backend.get_health() == [
        GpuHealth(
            uuid=gpu.uuid,
            ecc_corrected=1,
            ecc_uncorrected=0,
            pcie_width=16,
            power_limit_w=750,
            power_default_w=750,
            core_max_mhz=2100,
            mem_max_mhz=1300,
        )
    ]
    assert backend.inventory().driver_version == "6.12.12"


def test_a_radeon_of_rocm_5_with_other_names() -> None:
    backend = opened(FakeAmdsmi(old_card(0)))
    (gpu,) = backend.inventory().gpus
    assert (gpu.model, gpu.pcie_gen, gpu.pcie_width) == ("Radeon RX 7900 XTX", 4, 16)
    (status,) = backend.get_status()
    assert (status.temp_c, status.power_w, status.fan_pct, status.core_mhz) == (41, 35, 25, 500)  # 64 of 255; 65535 W is not told
    (health,) = backend.get_health()
    assert (health.pcie_gen, health.pcie_width) == (4, 8)
    (process,) = backend.get_process_list() or ()
    assert (process.pid, process.used_mib) == (4242, 300)


def test_cards_joined_by_xgmi_are_near_and_others_by_their_socket() -> None:
    smi = FakeAmdsmi(card(0), card(1), card(2))
    smi.links = {(0, 1): {"hops": 1, "type": 2}, (0, 2): {"hops": 3, "type": 1}}
    backend = opened(smi)
    a, b, c = (g.uuid for g in backend.inventory().gpus)
    assert backend.inventory().links == (LinkInfo(a=a, b=b, kind="nvlink", via="xgmi"), LinkInfo(a=a, b=c, kind="system"))


@pytest.mark.parametrize("call", sorted(set(card(0)) - {"amdsmi_get_gpu_device_uuid"}))
@pytest.mark.parametrize("answer", ["N/A", None, AmdSmiLibraryException("AMDSMI_STATUS_UNEXPECTED_DATA"), {}, [], "?"])
def test_whatever_one_call_gives_the_card_and_its_neighbour_stay(call: str, answer: object) -> None:
    backend = opened(FakeAmdsmi(card(0, **{call: answer}), card(1)))
    first, second = backend.get_status()
    assert first.error is None
    assert (second.used_mib, second.util_pct, second.temp_c) == (283, 37, 46)
    assert len(backend.get_health()) == 2
    backend.get_process_list()


def test_a_card_that_tells_nothing_is_not_a_healthy_one() -> None:
    smi = FakeAmdsmi(card(0), card(1))
    backend = opened(smi)
    smi.cards[0] = {"amdsmi_get_gpu_device_uuid": "x"}
    assert [s.error for s in backend.get_status()] == ["unreadable", None]


def test_a_library_older_than_a_call_leaves_its_field_open() -> None:
    smi = FakeAmdsmi(card(0))
    for name in ("amdsmi_get_gpu_total_ecc_count", "amdsmi_get_power_cap_info", "amdsmi_get_gpu_process_list"):
        del smi.cards[0][name]
    backend = opened(smi)
    (health,) = backend.get_health()
    assert (health.ecc_corrected, health.power_limit_w, health.pcie_width) == (None, None, 16)
    assert backend.get_process_list() is None


def test_it_is_taken_from_where_rocm_puts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.backends.amd.PLACES", (str(tmp_path),))
    assert amdsmi_find() is None
    with pytest.raises(BackendError, match="ROCm"):
        AmdBackend().initialize()
    (tmp_path / "amdsmi").mkdir()
    (tmp_path / "amdsmi" / "__init__.py").write_text("raise OSError('libamd_smi.so: cannot open shared object file')\n")
    assert amdsmi_find() == str(tmp_path)
    with pytest.raises(BackendError, match="libamd_smi") as caught:
        AmdBackend().initialize()
    assert caught.value.kind == "no_library"
