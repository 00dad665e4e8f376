"""Why a request was refused, in words: the errors of jobs/errors.py, jobs/parsing.py and the submit form. See jobs/wording."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs.wording import REASONS, Params, Sentence, quota_sentence, said
from jobs.wording.numbers import gib, listed
from quotas.errors import DomainError

_HINT = "-- sh -c '…'"
_INVALID_STATE = {
    "": gettext_lazy("Job %(job)s is %(state)s; this is not possible now."),
    "cancel": gettext_lazy("Job %(job)s can't be cancelled: it is %(state)s."),
    "hold": gettext_lazy("Job %(job)s can't be held: it is %(state)s, and only a waiting job can."),
    "replace": gettext_lazy("Job %(job)s does not wait any more (%(state)s), so nothing was submitted in its place."),
    "alternatives": gettext_lazy("Job %(job)s is %(state)s; only for a waiting job there is something that starts sooner."),
    "apply": gettext_lazy("Job %(job)s is %(state)s and differs in: %(fields)s. Cancel it first, or give the new one an id of its own."),
    "renew": gettext_lazy("Job %(job)s needs no renewal: it is %(state)s, and nothing ends it but itself."),
    "files": gettext_lazy("The files of job %(job)s can't be removed: it is %(state)s, and may leave more."),
    "release": gettext_lazy("Job %(job)s can't be released: it is %(state)s, and only a waiting job can."),
}


def _template(text: Any) -> Sentence:
    return lambda p: str(text) % p


ERRORS: dict[str, Sentence] = {
    "quota_exceeded": quota_sentence,
    "invalid_state": lambda p: (
        str(_INVALID_STATE.get(p.get("action", ""), gettext_lazy("Job %(job)s is %(state)s; this is not possible now."))) % p
    ),
    "idempotency_conflict": _template(
        gettext_lazy("This Idempotency-Key was used for another request, which made job %(job)s. Use a new key for a new job.")
    ),
    "project_not_found": _template(gettext_lazy("There is no project %(project)s that you may submit to.")),
    "size_unreadable": _template(gettext_lazy("%(value)s is no memory size; write 24G, 512M, or a number of MiB.")),
    "size_fraction": _template(gettext_lazy("%(value)s has no unit; write a size such as 12G or 512M.")),
    "share_range": _template(
        gettext_lazy("%(value)s is no share of a GPU: it must be above 0 and at most 1, such as 0.5; or write a size such as 12G.")
    ),
    "share_no_gpu": _template(gettext_lazy("No GPU here is of this kind, so %(value)s of one is no size; write one such as 12G.")),
    "share_many_sizes": lambda p: (
        _("%(value)s of a GPU is not one size: suitable GPUs here have %(sizes)s. Name a model, or write a size such as 12G.")
        % {**p, "sizes": listed([gib(size) for size in p["sizes"]])}
    ),
    "size_range": _template(gettext_lazy("%(value)s is no possible memory size; write 24G, 512M, or a number of MiB.")),
    "time_unreadable": _template(
        gettext_lazy("%(value)s is no time limit; write h:mm:ss such as 2:00:00, days such as 2-12:00:00, or 90m, 2h, or seconds.")
    ),
    "time_ambiguous": _template(gettext_lazy("%(value)s may mean hours or minutes; write %(hours)s or %(minutes)s.")),
    "time_range": _template(gettext_lazy("%(value)s is no possible time limit; it must be at least a second and at most 68 years.")),
    "command_operator": lambda p: (
        _("The command has the shell operator %(operator)s, but no shell runs it. To use a shell, submit: %(hint)s") % {"hint": _HINT, **p}
    ),
    "command_quotes": lambda p: _("A quote in the command is not closed."),
    "command_empty": lambda p: _("The command is empty; give a program and its arguments."),
    "command_both": lambda p: _("Give either argv (a list) or command (a string), not both."),
    "command_missing": lambda p: _("Give the program to run: argv (a list) or command (a string)."),
    "argv_empty": lambda p: _("The command is empty; give a program and its arguments."),
    "argv_program": lambda p: _("The first word of the command must name a program."),
    "argv_long": _template(gettext_lazy("The command has %(count)d words; the most is %(limit)d.")),
    "argv_nul": lambda p: _("The command has a NUL character, which no program can be given."),
    "argv_large": _template(gettext_lazy("The command has %(size)d bytes; the most is %(limit)d.")),
    "env_many": _template(gettext_lazy("There are %(count)d environment variables; the most is %(limit)d.")),
    "env_name": _template(gettext_lazy("%(name)s is no name for an environment variable; use letters, digits and _.")),
    "env_reserved": _template(gettext_lazy("%(name)s is set by NebulaGrid and can't be given; leave it out.")),
    "env_nul": _template(gettext_lazy("The value of %(name)s has a NUL character, which no program can be given.")),
    "env_value_large": _template(gettext_lazy("The value of %(name)s has %(size)d bytes; the most is %(limit)d.")),
    "env_large": _template(gettext_lazy("The environment has %(size)d bytes; the most is %(limit)d.")),
    "secret_unreadable": _template(gettext_lazy("%(value)s names no secret; write NAME for a file, or NAME=VARIABLE for a variable.")),
    "secrets_many": _template(gettext_lazy("There are %(count)d secrets; the most is %(limit)d.")),
    "secret_twice": _template(gettext_lazy("%(place)s would have two values; leave one of them out.")),
    "secret_missing": _template(
        gettext_lazy("There is no secret %(name)s, neither yours nor of the project %(project)s. Set it: nebula-ctl secrets set %(name)s")
    ),
    "name_length": _template(gettext_lazy("The name has %(length)d characters; it must have 1 to %(limit)d.")),
    "name_control": lambda p: _("The name has control characters, such as a line break; leave them out."),
    "path_long": _template(gettext_lazy("The path is longer than %(limit)d bytes.")),
    "path_nul": lambda p: _("The path has control characters; leave them out."),
    "path_relative": _template(gettext_lazy("%(value)s is not an absolute path; begin it with /.")),
    "size_twice": lambda p: _("Give either gpu_mem or gpu_mem_mib, not both."),
    "time_twice": lambda p: _("Give either time or time_limit_s, not both."),
    "grace_range": _template(gettext_lazy("grace_s is %(value)d; an admin allows at most %(limit)d.")),
    "priority_staff": lambda p: _("Only an admin may submit with a priority above 0."),
    "cpu_memory": lambda p: _("GPU memory is asked for but no GPU; leave it out, or set gpu_count to 1 or more."),
    "cpu_exclusive": lambda p: _("Whole GPUs are asked for but no GPU; leave exclusive out, or set gpu_count to 1 or more."),
    "cpu_kind": _template(
        gettext_lazy("A GPU of a certain %(field)s is asked for but no GPU; leave it out, or set gpu_count to 1 or more.")
    ),
    "given_twice": _template(gettext_lazy("Give either %(one)s or %(other)s, not both.")),
    "cores_unreadable": _template(gettext_lazy("%(value)s is no number of CPU cores; write 8, or 0.5, with at most three decimals.")),
    "cores_range": _template(gettext_lazy("%(value)s is no possible number of CPU cores; it must be from 0.001 to %(most)d.")),
    "version_unreadable": _template(gettext_lazy("%(value)s is no version; write numbers with dots between them, such as 12.4 or 550.")),
    "labels_many": _template(gettext_lazy("%(count)d labels are asked for; the most is %(limit)d.")),
    "label_key": _template(
        gettext_lazy("%(key)s is no name of a label; it has 1–63 letters, digits and . _ - /, such as rack or net/fabric.")
    ),
    "label_value": _template(gettext_lazy("The value of the label %(key)s must have at most %(limit)d visible characters.")),
    "queue_unknown": _template(gettext_lazy("There is no queue %(value)s; there are: %(known)s.")),
    "qos_unknown": _template(gettext_lazy("There is no quality of service %(value)s; there are: %(known)s.")),
    "qos_staff": _template(
        gettext_lazy("Only an admin may submit with the quality of service %(value)s: it raises the priority by %(points)d.")
    ),
    "not_boolean": _template(gettext_lazy("%(value)s is neither 0 nor 1.")),
    "files_remain": lambda p: _("The files of #%(job)s could not be removed from the disk of the control plane; its log says why.") % p,
    "estimates_busy": lambda p: _("Too many estimates are being made just now; ask again in a few seconds."),
    "log_gone": lambda p: _("There is no such attempt or rank of this job."),
}


def error_text(code: str, params: Params | None = None) -> str:
    """Why a request was refused: what happened, the numbers, the way out."""
    table = ERRORS if code in ERRORS else REASONS
    return said(table, code, params)


def refusal_text(error: DomainError) -> str:
    """The same of a refusal, which may have a sentence of its own."""
    text = error_text(error.code, error.params)
    return error.message or text if text == error.code else text
