"""The submit form. It only puts what a person typed into the body of the REST call; the same serializer judges both."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from django import forms
from django.utils.translation import gettext as _
from rest_framework.exceptions import ErrorDetail, ValidationError

from jobs.lifecycle import OnNodeLoss
from jobs.models import Job
from jobs.parsing import Unreadable, command_split
from jobs.requests import JobRequest
from jobs.serializers import SubmitRequest
from quotas.models import User
from quotas.selectors import projects_to_submit
from quotas.services import project_personal

#: Whose values a clone leaves out. Rather one too many than one too few: an empty value is seen and typed again.
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH|PRIVATE|_PWD|COOKIE|SESSION|DSN|SIGNATURE", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"://[^/\s:@]+:[^/\s@]+@")  # an address with a password in it
#: API field → the form's own name for it.
_FIELDS = {"argv": "command", "gpu_mem_mib": "gpu_mem", "time_limit_s": "time"}
#: What the verdict depends on; everything else may still be missing.
PLACE_FIELDS = ("gpu_count", "gpu_mem", "nodes", "time", "project", "arch", "model", "vendor", "priority", "hold")
KINDS = ("line", "words")


def env_is_secret(name: str, value: str) -> bool:
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))


def body_sha256(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode("utf-8", "surrogatepass")).hexdigest()


class JobForm(forms.Form):
    """Every field is text as it was typed. After ``is_valid``: ``body`` (the API's) and ``request`` (a JobRequest)."""

    name = forms.CharField(required=False, strip=True)
    project = forms.CharField(required=False)
    kind = forms.CharField(required=False)
    command = forms.CharField(required=False, strip=False)
    workdir = forms.CharField(required=False)
    gpu_count = forms.CharField(required=False)
    gpu_mem = forms.CharField(required=False)
    mem_unit = forms.CharField(required=False)
    nodes = forms.CharField(required=False)
    model = forms.CharField(required=False)
    time = forms.CharField(required=False)
    checkpoint = forms.CharField(required=False)
    env = forms.CharField(required=False, strip=False)
    requeue = forms.BooleanField(required=False)
    on_node_loss = forms.CharField(required=False)
    grace_s = forms.CharField(required=False)
    arch = forms.CharField(required=False)
    vendor = forms.CharField(required=False)
    priority = forms.CharField(required=False)
    hold = forms.BooleanField(required=False)

    def __init__(self, data: Mapping[str, Any] | None = None, *, user: User, initial: Mapping[str, Any] | None = None) -> None:
        super().__init__(data, initial={**BLANK, **(initial or {})}, label_suffix="")
        self.user = user
        self.body: dict[str, Any] = {}
        self.request: JobRequest | None = None
        self.place_request: JobRequest | None = None  # with another command, if only what runs is still wrong

    def clean(self) -> dict[str, Any]:
        """The body, and what the API says of it. One query for the project."""
        typed: dict[str, Any] = dict(self.cleaned_data)
        try:
            env = env_parse(typed["env"])
        except ValueError as error:
            env = {}
            self.add_error("env", str(error))
        self.body = _body(typed, env)
        self.request = self._judge(self.body, tell=True)
        if self.request is not None and not self.errors:
            self.place_request = self.request
        elif not set(self.errors) & set(PLACE_FIELDS):
            keys = ("gpu_count", "gpu_mem", "nodes", "time", "project", "constraints", "priority", "hold")
            self.place_request = self._judge({"argv": ["-"], **{key: self.body[key] for key in keys if key in self.body}}, tell=False)
        if self.errors:
            self.request = None
        return typed

    def _judge(self, body: dict[str, Any], *, tell: bool) -> JobRequest | None:
        serializer = SubmitRequest(data=body)
        try:
            serializer.is_valid(raise_exception=True)
            return serializer.job_request(self.user)
        except ValidationError as error:
            if tell:
                for field, message in _messages(error.detail):
                    self.add_error(field, message)
        return None

    @property
    def shell_fix(self) -> str:
        """For a command line with shell operators: the same through a shell; else empty."""
        text = str(self.cleaned_data.get("command", "") or self.data.get("command", "")).replace("\r\n", "\n").strip()
        if "command" not in self.errors or self.data.get("kind") == "words":
            return ""
        try:
            command_split(text)
        except Unreadable as error:
            return shlex.join(["sh", "-c", text]) if error.code == "command_operator" else ""
        return ""

    @property
    def first_wrong(self) -> str:
        return next((name for name in self.fields if name in self.errors), "")


#: What an empty form begins with.
BLANK: dict[str, Any] = {
    "kind": "line",
    "gpu_count": "1",
    "gpu_mem": "",
    "mem_unit": "G",
    "nodes": "1",
    "requeue": True,
    "on_node_loss": OnNodeLoss.HOLD.value,
    "priority": "0",
}


def _messages(detail: Any, field: str = "") -> list[tuple[str | None, str]]:
    """DRF's tree of errors as (form field, sentence)."""
    if isinstance(detail, Mapping):
        found: list[tuple[str | None, str]] = []
        for key, below in detail.items():
            found += _messages(below, field if isinstance(key, int) else str(key))
        return found
    if isinstance(detail, list) and not all(isinstance(item, ErrorDetail) for item in detail):
        return [message for item in detail for message in _messages(item, field)]
    name = _FIELDS.get(field, field)
    known = name if name in JobForm.base_fields else None
    return [(known, str(item)) for item in (detail if isinstance(detail, list) else [detail])]


def _whole(text: str) -> int | str:
    """A whole number, or what was typed: the serializer says what is wrong with it."""
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text


def _body(typed: Mapping[str, Any], env: dict[str, str]) -> dict[str, Any]:
    """What was typed as the body of POST /api/v1/jobs/submit. Empty fields are left out."""
    command = str(typed["command"]).replace("\r\n", "\n")  # browsers send every line break so
    body: dict[str, Any] = {}
    if typed["kind"] == "words":
        body["argv"] = [line for line in command.split("\n") if line] if command.strip() else []
    else:
        body["command"] = command
    for field in ("name", "project", "workdir", "checkpoint", "on_node_loss"):
        if typed[field]:
            body[field] = typed[field]
    if typed["gpu_mem"]:
        unit = typed["mem_unit"] if typed["mem_unit"] in ("G", "M") else "G"
        body["gpu_mem"] = f"{typed['gpu_mem']}{unit}" if re.fullmatch(r"[0-9.]+", typed["gpu_mem"]) else typed["gpu_mem"]
    for field in ("gpu_count", "nodes", "grace_s", "priority"):
        if typed[field]:
            body[field] = _whole(typed[field])
    if typed["time"]:
        body["time"] = typed["time"]
    if env:
        body["env"] = env
    if constraints := {key: typed[key] for key in ("arch", "model", "vendor") if typed[key]}:
        body["constraints"] = constraints
    body["requeue"] = bool(typed["requeue"])
    if typed["hold"]:
        body["hold"] = True
    return body


def env_parse(text: str) -> dict[str, str]:
    """``NAME=VALUE`` lines; the value is kept as it is. Raises ValueError with the sentence."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        if not line.strip():
            continue
        name, border, value = line.partition("=")
        name = name.strip()
        if not border:
            raise ValueError(_("Line %(number)d has no =; write NAME=VALUE.") % {"number": number})
        if name in found:
            raise ValueError(_("%(name)s is there twice, again in line %(number)d.") % {"name": name[:60], "number": number})
        found[name] = value
    return found


# --- an earlier job as the begin of a new one -----------------------------------------------------------------------


def initial_from(job: Job, *, reader: User) -> tuple[dict[str, Any], list[str]]:
    """The form's first values for a clone, and the names of variables whose values are not copied.

    Secrets never are; and of another's job (staff) none are: the values are its owner's alone. ``job.project`` loaded.
    """
    env: list[str] = []
    left_out: list[str] = []
    for name, value in sorted(job.env.items()):
        # A value with a line break can't be written on one line: it is left to be typed again too.
        if job.owner_id != reader.pk or env_is_secret(name, str(value)) or "\n" in str(value):
            left_out.append(name)
            value = ""
        env.append(f"{name}={value}")
    mib = job.gpu_mem_mib
    is_own_project = projects_to_submit(reader).filter(pk=job.project_id).exists()
    initial = {
        "name": job.name,
        "project": job.project.name if is_own_project else project_personal(reader).name,
        "kind": "line",
        "command": shlex.join(job.argv),
        "workdir": job.workdir,
        "gpu_count": str(job.gpu_count),
        "gpu_mem": "" if mib is None else str(mib // 1024 if mib % 1024 == 0 else mib),
        "mem_unit": "M" if mib is not None and mib % 1024 else "G",
        "nodes": str(job.nodes),
        "model": job.constraints.get("model", ""),
        "arch": job.constraints.get("arch", ""),
        "vendor": job.constraints.get("vendor", ""),
        "time": "" if job.time_limit_s is None else clock_of(job.time_limit_s),
        "checkpoint": job.checkpoint,
        "env": "\n".join(env),
        "requeue": job.requeue,
        "on_node_loss": job.on_node_loss,
        "grace_s": "" if job.grace_s is None else str(job.grace_s),
        "priority": str(job.priority) if reader.is_staff else str(min(0, job.priority)),
    }
    return initial, left_out


def clock_of(seconds: int) -> str:
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


# --- the same from a shell --------------------------------------------------------------------------------------


def command_line(body: Mapping[str, Any]) -> str:
    """The ``nebula-ctl submit`` line of a body, to paste into a shell. Secrets are named, and taken from that shell."""
    words = ["nebula-ctl", "submit"]
    options = (("name", "--name"), ("gpu_count", "--gpu-count"), ("gpu_mem", "--gpu-mem"), ("nodes", "--nodes"), ("time", "--time"))
    more = (("project", "--project"), ("workdir", "--workdir"), ("checkpoint", "--checkpoint"), ("grace_s", "--grace"))
    for field, option in (*options, *more, ("priority", "--priority"), ("on_node_loss", "--on-node-loss")):
        value = body.get(field)
        if value is not None and (field, value) not in {("gpu_count", 1), ("nodes", 1), ("priority", 0), ("on_node_loss", "hold")}:
            text = str(value)
            words += [f"{option}={text}"] if text.startswith("-") else [option, text]
    for field, value in (body.get("constraints") or {}).items():
        words += [f"--{field}", str(value)]
    for name, value in (body.get("env") or {}).items():
        words += ["--env", name if env_is_secret(name, value) else f"{name}={value}"]
    if body.get("requeue") is False:
        words.append("--no-requeue")
    if body.get("hold"):
        words.append("--hold")
    return f"{shlex.join(words)} -- {_program(body)}"


def _program(body: Mapping[str, Any]) -> str:
    """Quoted anew where it can be read: a shell would expand what the form takes as it is ($x, *)."""
    if "argv" in body:
        return shlex.join(body["argv"])
    text = str(body.get("command", ""))
    try:
        return shlex.join(command_split(text))
    except Unreadable:
        return text.strip()
