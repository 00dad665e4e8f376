"""What the end of an output shows, with the way out: on the job's page, and for GPU memory as the reason of its end."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import translation

from jobs import logs
from jobs.known_errors import KNOWN, TAIL_BYTES, error_in, output_tail
from jobs.models import Job, Rank
from tests.factories import user_make
from tests.jobs.lab import Lab, state

OOM = (
    'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1.1 GiB is "
    "free.\n"
)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (OOM, "cuda_oom"),
        ("RuntimeError: CUDA error: out of memory", "cuda_oom"),
        ("failed to allocate: CUDA_ERROR_OUT_OF_MEMORY", "cuda_oom"),
        ("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.", "cuda_oom"),
        ("HIP out of memory. Tried to allocate 20.00 MiB", "cuda_oom"),
        ("RuntimeError: NPU out of memory. Tried to allocate", "cuda_oom"),
        ("CUDA driver version is insufficient for CUDA runtime version", "driver_old"),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "arch_missing"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "driver_silent"),
        ("RuntimeError: No CUDA GPUs are available", "driver_silent"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "device_fault"),
        ("torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1275, ncclSystemError", "nccl"),
        ("RuntimeError: unable to open shared memory object </torch_12_3> in read-write mode", "shared_memory"),
        ("OSError: [Errno 28] No space left on device: '/data/x'", "disk_full"),
        ("ModuleNotFoundError: No module named 'torch'", "module_missing"),
        ("ImportError: libcudart.so.12: cannot open shared object file: No such file or directory", "module_missing"),
    ],
)
def test_each_known_error_is_recognised(text: str, code: str) -> None:
    found = error_in("step 1\nstep 2\n" + text + "\nbye\n")
    assert found is not None
    assert found.error.code == code
    assert found.line


@pytest.mark.parametrize("text", ["", "step 1\nloss 0.1\n", "KeyError: 'x'\n", "memory: 12 GB\n", "\ufffd\ufffd"])
def test_what_is_not_known_is_not_guessed(text: str) -> None:
    assert error_in(text) is None


def test_what_comes_last_counts() -> None:
    found = error_in(OOM + "retrying with a smaller batch\nOSError: [Errno 28] No space left on device\n")
    assert found is not None
    assert found.error.code == "disk_full"


class Counted(str):
    """A text that counts its characters as they are searched."""

    seen: int

    def find(self, word: str, begin: int = 0, end: int | None = None) -> int:  # type: ignore[override]
        stop = len(self) if end is None else end
        at = super().find(word, begin, stop)
        self.seen += (at if at >= 0 else stop) - begin
        return at


@pytest.mark.parametrize("word", ["unable to open ", "Bus error ", "ImportError: lib", "x", "CUDA", "Bus error\n", "NCCL error\n", "\n"])
def test_each_character_is_searched_once_for_each_word_however_the_text_repeats_itself(word: str) -> None:
    text = Counted((word * TAIL_BYTES)[:TAIL_BYTES])
    text.seen = 0
    error_in(text)
    words = sum(len(mark) + 1 for error in KNOWN for mark in error.marks)
    assert text.seen <= TAIL_BYTES * words


def test_a_word_that_comes_again_does_not_hide_what_follows_it() -> None:
    found = error_in("unable to open a door, unable to open shared memory object\n")
    assert found is not None
    assert found.error.code == "shared_memory"


def test_of_a_long_line_the_part_around_the_error_is_shown() -> None:
    found = error_in("x" * 5000 + " CUDA out of memory. Tried to allocate" + "y" * 5000)
    assert found is not None
    assert "CUDA out of memory. Tried" in found.line
    assert len(found.line) <= 240


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_each_has_words_and_a_secure_link_or_none(language: str) -> None:
    with translation.override(language):
        for error in KNOWN:
            assert len(str(error.title)) > 3
            assert len(str(error.advice)) > 10
            assert error.link.startswith("https://") or error.link == ""
            assert not (language == "zh-hans" and str(error.title).isascii())


@pytest.mark.django_db
class TestJobs:
    @pytest.fixture
    def lab(self) -> Lab:
        found = Lab()
        found.node("n1", 24_564)
        return found

    def failed(self, lab: Lab, text: str, **request: object) -> Job:
        job = lab.submit(**{"gpu_mem_mib": 4096, **request})
        lab.schedule()
        lab.report(job, "RUNNING")
        rank = Rank.objects.get(attempt__job=job)
        data = text.encode()
        logs.log_append(rank.key, offset=0, data=data)
        lab.exit(job, 1, final_log_offset=len(data))
        job.refresh_from_db()
        assert state(job) == "FAILED"
        return job

    def test_a_program_that_died_of_gpu_memory_ends_with_that_reason_and_its_page_says_what_to_do(self, lab: Lab, client: Client) -> None:
        job = self.failed(lab, "x" * 2 * TAIL_BYTES + "\n" + OOM + "<b>bye</b>\n")
        assert (job.end_reason, job.exit_code) == ("gpu_memory", 1)
        client.force_login(job.owner)
        page = client.get(f"/jobs/{job.pk}/").content.decode()
        assert "Out of GPU memory" in page
        assert "pytorch.org/docs" in page
        assert "torch.OutOfMemoryError: CUDA out of memory." in page

    def test_another_known_error_stays_an_exit_code_and_is_shown(self, lab: Lab, client: Client) -> None:
        job = self.failed(lab, "ModuleNotFoundError: No module named '<i>x</i>'\n")
        assert job.end_reason == "nonzero_exit"
        client.force_login(job.owner)
        page = client.get(f"/jobs/{job.pk}/").content.decode()
        assert "A package is missing where it ran" in page
        assert "&lt;i&gt;x&lt;/i&gt;" in page
        client.force_login(user_make(is_staff=True))
        assert 'id="known-error"' in client.get(f"/jobs/{job.pk}/").content.decode()

    def test_the_output_is_searched_once_when_the_job_ends_and_at_no_view(
        self, lab: Lab, client: Client, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
    ) -> None:
        with django_capture_on_commit_callbacks(execute=True):
            job = self.failed(lab, "ModuleNotFoundError: No module named 'x'\n")
        job.refresh_from_db()
        line = "ModuleNotFoundError: No module named 'x'"
        assert job.end_known == {"code": "module_missing", "line": line, "last": [line]}
        monkeypatch.setattr("jobs.services.known.error_of", pytest.fail)
        client.force_login(job.owner)
        for _view in range(2):
            assert "A package is missing where it ran" in client.get(f"/jobs/{job.pk}/").content.decode()

    def test_a_job_that_ended_before_is_looked_at_by_the_first_view_alone(self, lab: Lab, client: Client, monkeypatch: Any) -> None:
        job = self.failed(lab, "no error that is known\n")
        Job.objects.filter(pk=job.pk).update(end_known=None)
        client.force_login(job.owner)
        assert client.get(f"/jobs/{job.pk}/").status_code == 200
        assert Job.objects.get(pk=job.pk).end_known == {"last": ["no error that is known"]}
        monkeypatch.setattr("jobs.services.known.error_of", pytest.fail)
        assert 'id="known-error"' not in client.get(f"/jobs/{job.pk}/").content.decode()

    def test_a_job_without_cards_has_no_gpu_memory_to_die_of(self, lab: Lab) -> None:
        assert self.failed(lab, OOM, gpu_count=0, gpu_mem_mib=None).end_reason == "nonzero_exit"

    def test_an_output_that_is_not_there_is_no_error(self) -> None:
        assert output_tail("999999.1.0") == ""
