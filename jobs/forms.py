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
from jobs.needs import KIND
from jobs.parsing import Unreadable, command_split
from jobs.requests import JobRequest
from jobs.serializers import SubmitRequest
from nodes.labels import labels_parse
from quotas.models import User

#: API field → the form's own name for it.
_FIELDS = {"argv": "command", "gpu_mem_mib": "gpu_mem", "time_limit_s": "time"}
#: What the verdict depends on; everything else may still be missing.
PLACE_FIELDS = (
    *("gpu_count", "gpu_mem", "exclusive", "nodes", "cpus", "host_mem", "time", "project", *KIND, "queue", "qos", "priority", "hold"),
)
KINDS = ("line", "words")


def body_sha256(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode("utf-8", "surrogatepass")).hexdigest()


class Alternatives(forms.TextInput):
    """Several boxes of one name: what is ticked, parted by ``|``, as a constraint has it."""

    def value_from_datadict(self, data: Any, files: Any, name: str) -> str | None:
        found = data.getlist(name) if hasattr(data, "getlist") else [data[name]] if name in data else []
        return "|".join(part for part in found if part) or None


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
    exclusive = forms.BooleanField(required=False)
    nodes = forms.CharField(required=False)
    cpus = forms.CharField(required=False)
    host_mem = forms.CharField(required=False)
    host_unit = forms.CharField(required=False)
    model = forms.CharField(required=False, widget=Alternatives)
    time = forms.CharField(required=False)
    checkpoint = forms.CharField(required=False)
    env = forms.CharField(required=False, strip=False)
    secrets = forms.CharField(required=False)
    requeue = forms.BooleanField(required=False)
    on_node_loss = forms.CharField(required=False)
    grace_s = forms.CharField(required=False)
    arch = forms.CharField(required=False)
    vendor = forms.CharField(required=False)
    cuda_min = forms.CharField(required=False)
    driver_min = forms.CharField(required=False)
    labels = forms.CharField(required=False, strip=False)
    queue = forms.CharField(required=False)
    qos = forms.CharField(required=False)
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
        typed: dict[str, Any] = {**dict.fromkeys(self.fields, ""), **self.cleaned_data}  # what Django refused (a NUL) is left out there
        pairs: dict[str, dict[str, str]] = {}
        for field, parse in (("env", env_parse), ("labels", labels_parse)):
            try:
                pairs[field] = parse(typed[field])
            except ValueError as error:
                pairs[field] = {}
                self.add_error(field, str(error))
        self.body = _body({**typed, **pairs})
        self.request = self._judge(self.body, tell=True)
        if self.request is not None and not self.errors:
            self.place_request = self.request
        elif not set(self.errors) & set(PLACE_FIELDS):
            keys = {*PLACE_FIELDS, "constraints"}
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
    "host_unit": "G",
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
            # Of these two the keys are the user's own.
            found += _messages(below, field if isinstance(key, int) or field in ("env", "labels") else str(key))
        return found
    if isinstance(detail, list) and not all(isinstance(item, ErrorDetail) for item in detail):
        return [message for item in detail for message in _messages(item, field)]
    name = _FIELDS.get(field, field)
    known = name if name in JobForm.base_fields else None
    return [(known, str(item)) for item in (detail if isinstance(detail, list) else [detail])]


def _whole(text: str) -> int | str:
    """A whole number, or what was typed: the serializer says what is wrong with it."""
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text


def _sized(amount: str, unit: str) -> str:
    """A number with the unit chosen beside it; anything else as it was typed."""
    return f"{amount}{unit if unit in ('G', 'M') else 'G'}" if re.fullmatch(r"[0-9.]+", amount) else amount


def _body(typed: Mapping[str, Any]) -> dict[str, Any]:
    """What was typed as the body of POST /api/v1/jobs/submit. Empty fields are left out; ``env`` and ``labels`` are read."""
    command = str(typed["command"]).replace("\r\n", "\n")  # browsers send every line break so
    body: dict[str, Any] = {}
    if typed["kind"] == "words":
        body["argv"] = [line for line in command.split("\n") if line] if command.strip() else []
    else:
        body["command"] = command
    for field in ("name", "project", "workdir", "checkpoint", "on_node_loss", "cpus", "queue", "qos"):
        if typed[field]:
            body[field] = typed[field]
    for field, unit in (("gpu_mem", "mem_unit"), ("host_mem", "host_unit")):
        if typed[field]:
            body[field] = _sized(typed[field], typed[unit])
    for field in ("gpu_count", "nodes", "grace_s", "priority"):
        if typed[field]:
            body[field] = _whole(typed[field])
    if typed["time"]:
        body["time"] = typed["time"]
    if typed["env"]:
        body["env"] = typed["env"]
    if names := str(typed["secrets"]).split():
        body["secrets"] = names
    if constraints := {key: typed[key] for key in KIND if typed[key]}:
        body["constraints"] = constraints
    body["requeue"] = bool(typed["requeue"])
    body |= {field: True for field in ("hold", "exclusive") if typed[field]}
    return body


def body_of(values: Mapping[str, Any], *, user: User) -> dict[str, Any]:
    """The form's values as the body of POST /api/v1/jobs/submit, whether or not it would be taken."""
    form = JobForm({name: value for name, value in values.items() if value not in (None, False, "")}, user=user)
    form.is_valid()
    return form.body


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
