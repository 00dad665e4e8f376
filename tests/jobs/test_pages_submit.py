"""The submit form: what the API would say, what a clone leaves out, one job for one form."""

from __future__ import annotations

import html
import itertools
import json
import re
import shlex
from typing import Any
from urllib.parse import unquote

import pytest
from django.test import Client
from pytest_django.fixtures import Settings

from jobs import refusals
from jobs.clone import env_is_secret, initial_from
from jobs.forms import JobForm, env_parse
from jobs.models import Job
from jobs.parsing import command_split
from jobs.policy import policy_current
from jobs.serializers import SubmitRequest
from jobs.shell_line import command_line
from nodes.models import Node
from quotas.models import User
from quotas.throttles import throttle_reset
from tests.factories import gpu_make, job_make, node_make, project_make, user_make

pytestmark = pytest.mark.django_db
HTMX = {"HX-Request": "true"}
FILLED = {
    "command": "python train.py",
    "kind": "line",
    "gpu_count": "1",
    "nodes": "1",
    "mem_unit": "G",
    "requeue": "1",
    "on_node_loss": "hold",
}


@pytest.fixture(autouse=True)
def no_redis(settings: Settings) -> None:
    settings.LIVE_REDIS_URL = "unix:///nonexistent/redis.sock"
    throttle_reset()


@pytest.fixture
def lin() -> User:
    gpu_make(node_make("node01"))
    return user_make("lin@lab.example")


@pytest.fixture
def client(lin: User) -> Client:
    client = Client()
    client.force_login(lin)
    return client


def submitted(client: Client, **fields: Any) -> Any:
    return client.post("/jobs/new/", {**FILLED, "key": "k1", **fields})


def field_value(page: str, name: str) -> str:
    """What a form field of the page holds."""
    area = re.search(rf'<textarea[^>]*name="{name}"[^>]*>\n?(.*?)</textarea>', page, re.DOTALL)
    plain = re.search(rf'<input[^>]*name="{name}"[^>]*value="([^"]*)"', page)
    found = area or plain
    assert found, name
    return html.unescape(found[1])


# --- submitting ---------------------------------------------------------------------------------------------------


def test_a_form_becomes_the_job_that_it_describes(client: Client, lin: User) -> None:
    project_make("nlp", members=(lin,))
    answer = submitted(
        client,
        name="sd-lora-水墨风",
        project="nlp",
        command="python train.py --config 'a b.yaml' \\\r\n  --seed 7\r\n",
        workdir="/home/lin",
        gpu_mem="1.5",
        time="2:00:00",
        env="A=1\r\nB=x=y z\r\n\r\n",
        checkpoint="ckpt",
        on_node_loss="requeue",
        grace_s="60",
        arch="8.9",
    )
    job = Job.objects.get()
    assert answer.headers["Location"] == f"/jobs/{job.pk}/"
    assert (job.name, job.project.name, job.owner) == ("sd-lora-水墨风", "nlp", lin)
    assert job.argv == ["python", "train.py", "--config", "a b.yaml", "--seed", "7"]
    assert (job.gpu_mem_mib, job.time_limit_s, job.grace_s) == (1536, 7200, 60)
    assert job.env == {"A": "1", "B": "x=y z"}
    assert (job.workdir, job.checkpoint, job.on_node_loss, job.requeue) == ("/home/lin", "ckpt", "requeue", True)
    assert job.constraints == {"arch": "8.9"}


@pytest.fixture
def rich(lin: User) -> None:
    """A second node that has all that the next tests ask for."""
    more = {"cuda_version": "12.4", "driver_version": "550.54", "labels": {"rack": "r2", "floor": "三楼"}}
    node = node_make("node02", cpu_cores=16, memory_mib=128_000, **more)
    gpu_make(node, model="NVIDIA A100 80GB PCIe", mib=81_920, compute_capability="8.0")


NEEDS = {
    "exclusive": "1",
    "cpus": "1.5",
    "host_mem": "64",
    "host_unit": "G",
    "model": ["NVIDIA A100 80GB PCIe", "H100"],
    "cuda_min": "12.2",
    "driver_min": "535",
    "labels": "rack = r2\r\n\r\nfloor=三楼\r\n",
    "qos": "low",
}
KEPT = {
    "model": "NVIDIA A100 80GB PCIe|H100",
    "cuda_min": "12.2",
    "driver_min": "535",
    "labels": {"rack": "r2", "floor": "三楼"},
    "cpu_milli": 1500,
    "host_mem_mib": 65_536,
    "exclusive": True,
}


def test_what_the_machine_must_have_becomes_the_job_s(client: Client, rich: None) -> None:
    assert submitted(client, gpu_mem="4", **NEEDS).status_code == 302
    job = Job.objects.get()
    assert job.constraints == KEPT
    assert (job.qos, job.queue) == ("low", "")
    for path in (f"/jobs/{job.pk}/request/", f"/jobs/{job.pk}/"):
        page = html.unescape(client.get(path).content.decode())
        assert "4\xa0GiB, alone on its card, A100 80GB PCIe / H100" in page
        for name, value in (("CUDA", "12.2 or newer"), ("Driver", "535 or newer"), ("Node labels", "floor=三楼, rack=r2"),
                            ("CPU cores", "1.5"), ("Main memory", "64\xa0GiB"), ("Quality of service", "low")):  # fmt: skip
            assert f"<dt>{name}</dt><dd><bdi>{value}</bdi></dd>" in page, name
    assert "12.2 或更新" in client.get(f"/jobs/{job.pk}/request/", headers={"Accept-Language": "zh-hans"}).content.decode()


def test_the_shell_s_line_and_a_clone_carry_what_the_machine_must_have(client: Client, rich: None) -> None:
    line = re.search(r'id="cli">(.*?)</pre>', html.unescape(checked(client, gpu_mem="4", **NEEDS)), re.DOTALL)
    assert line
    words = shlex.split(line[1])
    wanted = ["--cpus", "1.5", "--mem", "64G", "--qos", "low", "--model", "NVIDIA A100 80GB PCIe|H100", "--cuda", "12.2"]
    wanted += ["--driver", "535", "--label", "rack=r2", "--label", "floor=三楼", "--exclusive"]
    assert [word for word in words if word in wanted] == wanted
    submitted(client, gpu_mem="4", **NEEDS)
    page = client.get(f"/jobs/new/?from=job:{Job.objects.get().pk}").content.decode()
    assert '<details class="more" open>' in page
    boxes = [html.unescape(value) for value in re.findall(r'name="model" value="([^"]*)" checked', page)]
    assert boxes == NEEDS["model"]
    again = {name: field_value(page, name) for name in ("gpu_mem", "cpus", "host_mem", "cuda_min", "driver_min", "labels")}
    assert 'name="exclusive" value="1" checked' in page
    assert '<option value="low" selected>' in page
    submitted(client, key="k2", **{**again, "model": boxes, "exclusive": "1", "host_unit": "G", "qos": "low"})
    first, second = Job.objects.order_by("pk")
    assert (second.constraints, second.qos, second.gpu_mem_mib) == (first.constraints, first.qos, first.gpu_mem_mib)


def test_the_form_offers_what_there_is(client: Client, rich: None, lin: User) -> None:
    page = html.unescape(client.get("/jobs/new/").content.decode())
    for choice in ('<option value="8.0">A100 80GB PCIe</option>', '<option value="12.4">', '<option value="550.54">', "rack=r2"):
        assert choice in page
    assert '<option value="low">low (-100)</option>' in page
    assert '<option value="high"' not in page
    User.objects.filter(pk=lin.pk).update(is_staff=True)
    assert '<option value="high">high (+100)</option>' in client.get("/jobs/new/").content.decode()


def test_queues_are_offered_where_they_count(client: Client, settings: Settings) -> None:
    assert 'id="queue"' not in client.get("/jobs/new/").content.decode()
    settings.POLICY_ORDER = "capacity"
    settings.POLICY_QUEUES = json.dumps({"first": {"guaranteed": 0.5}, "课程 <b>": {"guaranteed": 0.5}})
    settings.POLICY_QOS = json.dumps({"nice": -5, "vip": 5})
    page = client.get("/jobs/new/").content.decode()
    assert '<option value="">first</option><option value="课程 &lt;b&gt;">课程 &lt;b&gt;</option>' in page
    assert "nice (-5)" in page
    assert "vip" not in page
    assert "--queue '课程 <b>' --qos nice" in checked(client, queue="课程 <b>", qos="nice")
    submitted(client, queue="课程 <b>", qos="nice")
    job = Job.objects.get()
    assert (job.queue, job.qos) == ("课程 <b>", "nice")
    assert "<dt>Queue</dt><dd><bdi>课程 &lt;b&gt;</bdi></dd>" in client.get(f"/jobs/{job.pk}/request/").content.decode()
    assert '<option value="课程 &lt;b&gt;" selected>' in client.get(f"/jobs/new/?from=job:{job.pk}").content.decode()
    settings.POLICY_QUEUES = settings.POLICY_QOS = ""  # neither is there any more: a clone asks for the default
    page = client.get(f"/jobs/new/?from=job:{job.pk}").content.decode()
    assert "课程" not in page
    assert "There is no queue first; there are: batch, interactive, service." in submitted(client, key="k2", queue="first").content.decode()


def test_the_verdict_is_about_the_machine_that_is_asked_for(client: Client, rich: None) -> None:
    assert "Starts at once on node01 gpu0" in checked(client, gpu_mem="8")
    assert "Starts at once on node02 gpu0" in checked(client, gpu_mem="8", cuda_min="12.2", command="")
    assert "Starts at once on node02 gpu0" in checked(client, gpu_mem="8", labels="rack=r2")
    said = checked(client, gpu_mem="8", labels="rack=r9")
    assert 'data-verdict="never"' in said
    assert "No suitable node here has the label rack=r9; its values here are: r2." in said
    Node.objects.filter(name="node01").update(memory_mib=64_000)  # one that does not say how much it has may be waited for
    assert "256 GiB of host memory are asked on each node, the largest has 125 GiB (node02)" in checked(client, host_mem="256")
    assert "Not clear yet" in checked(client, cpus="many")


def test_one_argument_a_line_needs_no_quotes(client: Client) -> None:
    submitted(client, kind="words", command="sh\r\n-c\r\necho $HOME | wc; a && b")
    assert Job.objects.get().argv == ["sh", "-c", "echo $HOME | wc; a && b"]


def test_a_box_that_is_not_ticked_is_off(client: Client) -> None:
    client.post("/jobs/new/", {key: value for key, value in FILLED.items() if key != "requeue"} | {"key": "k"})
    assert Job.objects.get().requeue is False


def test_sending_twice_makes_one_job(client: Client) -> None:
    first, second = submitted(client), submitted(client)
    assert first.headers["Location"] == second.headers["Location"]
    assert Job.objects.count() == 1


def test_a_form_that_was_changed_and_sent_again_asks_first(client: Client) -> None:
    submitted(client)
    again = submitted(client, name="other")
    page = again.content.decode()
    assert again.status_code == 409
    assert f"already made job #{Job.objects.get().pk}" in page
    key = field_value(page, "key")
    assert key != "k1"
    assert submitted(client, name="other", key=key).status_code == 302
    assert Job.objects.count() == 2


def test_a_form_without_a_key_still_works(client: Client) -> None:
    assert submitted(client, key="").status_code == 302
    assert submitted(client, key="with space").status_code == 302


def test_what_could_never_run_is_refused_with_the_api_s_sentence(client: Client) -> None:
    answer = submitted(client, gpu_mem="96")
    assert answer.status_code == 400
    assert "96 GiB are asked on one GPU, the largest has 24 GiB" in answer.content.decode()
    assert not Job.objects.exists()


def test_a_quota_is_refused_with_its_numbers(client: Client, lin: User) -> None:
    type(lin.quota).objects.filter(user=lin).update(max_active_jobs=3, active_jobs=3)
    answer = submitted(client)
    assert answer.status_code == 403
    assert "3 of 3" in answer.content.decode()


def test_too_many_submits_are_told_to_wait(client: Client, settings: Settings) -> None:
    settings.THROTTLE_SUBMIT = "1/60"
    assert submitted(client).status_code == 302
    assert submitted(client, key="k2").status_code == 429
    assert Job.objects.count() == 1


# --- errors -------------------------------------------------------------------------------------------------------

WRONG = [
    ({"command": "a | b"}, "command"),
    ({"command": "echo 'a"}, "command"),
    ({"command": ""}, "command"),
    ({"kind": "words", "command": " "}, "command"),
    ({"gpu_mem": "lots"}, "gpu_mem"),
    ({"gpu_mem": "0"}, "gpu_mem"),
    ({"gpu_count": "0", "gpu_mem": "4"}, "gpu_mem"),
    ({"gpu_count": "-1"}, "gpu_count"),
    ({"gpu_count": "two"}, "gpu_count"),
    ({"nodes": "0"}, "nodes"),
    ({"time": "30:00"}, "time"),
    ({"time": "soon"}, "time"),
    ({"workdir": "relative"}, "workdir"),
    ({"env": "1A=x"}, "env"),
    ({"env": "CUDA_VISIBLE_DEVICES=0"}, "env"),
    ({"name": "a\tb"}, "name"),
    ({"project": "not-mine"}, "project"),
    ({"grace_s": "100000"}, "grace_s"),
    ({"priority": "5"}, "priority"),
    ({"qos": "high"}, "qos"),
    ({"qos": "gold"}, "qos"),
    ({"queue": "fast"}, "queue"),
    ({"cpus": "two"}, "cpus"),
    ({"host_mem": "lots"}, "host_mem"),
    ({"cuda_min": "new"}, "cuda_min"),
    ({"driver_min": "new"}, "driver_min"),
    ({"labels": "a b=c"}, "labels"),
    ({"gpu_count": "0", "exclusive": "1"}, "exclusive"),
    ({"gpu_count": "0", "vendor": "nvidia"}, "vendor"),
    ({"on_node_loss": "explode"}, "on_node_loss"),
    ({"model": "x" * 401}, "model"),
]


@pytest.mark.parametrize(("fields", "name"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_field_is_named_in_the_api_s_words(client: Client, lin: User, fields: dict[str, str], name: str) -> None:
    answer = submitted(client, **fields)
    assert answer.status_code == 200
    form = JobForm({**FILLED, **fields}, user=lin)
    assert not form.is_valid()
    assert list(form.errors) == [name]
    api = SubmitRequest(data=form.body)
    sentences = [str(part) for part in form.errors[name]]
    if api.is_valid():  # only known with the user: project, priority
        code = {"project": "project_not_found", "priority": "priority_staff", "queue": "queue_unknown", "qos": "qos_staff"}[name]
        code = "qos_unknown" if fields.get("qos") == "gold" else code
        policy = policy_current()
        known = ", ".join([queue.name for queue in policy.queues] if name == "queue" else dict(policy.qos))
        params = {"project": fields.get("project"), "value": fields.get(name), "known": known, "points": 100}
        assert sentences == [refusals.error_text(code, params)]
    else:
        assert sentences[0] in str(api.errors)
    page = html.unescape(answer.content.decode())
    assert sentences[0] in page
    if name not in ("model", "project", "on_node_loss"):
        assert re.search(rf'name="{name}"[^>]*aria-invalid="true"[^>]*aria-describedby="{name}-e"', page)
    assert not Job.objects.exists()


@pytest.mark.parametrize(("name", "text"), [("labels", "rack"), ("labels", "a=1\na=2"), ("command", "a\0b"), ("env", "A=\0")])
def test_what_the_form_itself_can_t_read_is_told_at_its_field(client: Client, name: str, text: str) -> None:
    answer = submitted(client, **{name: text})
    assert answer.status_code == 200
    assert list(answer.context["form"].errors) == [name]
    assert not Job.objects.exists()


def test_a_label_with_a_sign_that_nobody_sees_makes_no_job(client: Client) -> None:
    assert submitted(client, labels="name=\0").status_code == 400
    assert not Job.objects.exists()


def test_several_errors_are_told_at_once_and_what_was_typed_stays(client: Client) -> None:
    page = submitted(client, command="a | b", time="soon", name="kept name").content.decode()
    assert "2 things to put right" in page
    assert 'href="#command"' in page
    assert field_value(page, "command") == "a | b"
    assert field_value(page, "name") == "kept name"


def test_a_shell_s_operators_come_with_the_way_through_a_shell(client: Client) -> None:
    page = html.unescape(submitted(client, command="a 'b c' | tee \"d\"").content.decode())
    found = re.search(r'data-set="command=([^&"]*)&', page)
    assert found
    assert command_split(unquote(found[1])) == ["sh", "-c", "a 'b c' | tee \"d\""]
    assert "Run it with sh" not in submitted(client, command="echo 'a").content.decode()


@pytest.mark.parametrize(("text", "words"), [("A=1\nB", "Line 2"), ("A=1\nA=2", "A is there twice")])
def test_a_line_of_the_environment_that_is_none_is_named(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        env_parse(text)


# --- the check while one types --------------------------------------------------------------------------------------


def checked(client: Client, *, touched: str = "", **fields: Any) -> str:
    answer = client.post("/jobs/new/check/", {**FILLED, "touched": touched, **fields}, headers=HTMX)
    assert answer.status_code == 200
    return html.unescape(answer.content.decode())


def test_the_verdict_says_what_would_happen_now(client: Client) -> None:
    assert "Starts at once on node01 gpu0" in checked(client, gpu_mem="8")
    assert 'data-verdict="never"' in checked(client, gpu_mem="96")
    assert "nebula-ctl submit --gpu-mem 8G -- python train.py" in checked(client, gpu_mem="8")
    assert not Job.objects.exists()


def test_the_verdict_does_not_wait_for_the_command(client: Client) -> None:
    page = checked(client, command="", gpu_mem="8")
    assert "Starts at once on node01 gpu0" in page


def test_the_verdict_says_when_it_cannot_tell(client: Client) -> None:
    assert "Not clear yet" in checked(client, gpu_mem="lots")


def test_only_fields_that_one_has_been_in_are_called_wrong(client: Client) -> None:
    assert "no memory size" not in checked(client, gpu_mem="lots", command="")
    page = checked(client, gpu_mem="lots", command="", touched="gpu_mem")
    assert "no memory size" in page
    assert "The command is empty" not in page
    # Each field's place for a message comes, so that one that was put right is emptied.
    assert '<div id="time-e" data-error-of="time" hx-swap-oob="true"></div>' in page


def test_the_check_writes_nothing_and_takes_any_text(client: Client) -> None:
    page = checked(client, command="<script>alert(1)</script>", name="<img src=x>", gpu_count="9" * 30, nodes="x", model="<b>")
    raw = client.post("/jobs/new/check/", {**FILLED, "command": "<script>alert(1)</script>"}).content.decode()
    assert "<script>" not in raw
    assert page
    assert not Job.objects.exists()


# --- clones -------------------------------------------------------------------------------------------------------


def test_a_clone_has_everything_but_secrets(client: Client, lin: User) -> None:
    env = {"HF_TOKEN": "hf_1", "AWS_SECRET_ACCESS_KEY": "s3", "DB": "postgres://u:pw@h/d", "OMP_NUM_THREADS": "4"}
    argv = ["sh", "-c", "echo 'it''s' | wc\nls"]
    source = job_make(
        lin,
        name="first",
        argv=argv,
        env=env,
        gpu_count=1,
        gpu_mem_mib=12_288,
        time_limit_s=5400,
        workdir="/w",
        on_node_loss="requeue",
        requeue=False,
        constraints={"model": "RTX 4090"},
    )
    page = client.get(f"/jobs/new/?from=job:{source.pk}").content.decode()
    for secret in ("hf_1", "s3<", "pw@h"):
        assert secret not in page
    assert "are not copied" in page
    fields = {name: field_value(page, name) for name in ("name", "command", "workdir", "gpu_count", "gpu_mem", "time", "env")}
    assert fields["env"] == "AWS_SECRET_ACCESS_KEY=\nDB=\nHF_TOKEN=\nOMP_NUM_THREADS=4"
    more = {"kind": "line", "mem_unit": "G", "nodes": "1", "on_node_loss": "requeue", "model": "RTX 4090", "key": "k"}
    client.post("/jobs/new/", {**fields, **more})
    clone = Job.objects.exclude(pk=source.pk).get()
    same = ("name", "argv", "gpu_count", "gpu_mem_mib", "time_limit_s", "workdir", "on_node_loss", "requeue", "constraints")
    assert [getattr(clone, name) for name in same] == [getattr(source, name) for name in same]


def test_nobody_clones_another_s_job_but_staff_and_they_get_no_values(client: Client, lin: User) -> None:
    source = job_make(lin, env={"PLAIN": "value_of_lin"})
    stranger = Client()
    stranger.force_login(user_make())
    assert stranger.get(f"/jobs/new/?from=job:{source.pk}").status_code == 404
    staff = Client()
    staff.force_login(user_make(is_staff=True))
    page = staff.get(f"/jobs/new/?from=job:{source.pk}").content.decode()
    assert "PLAIN=" in page
    assert "value_of_lin" not in page


@pytest.mark.parametrize("query", ["from=job:999999", "from=job:" + "9" * 30, "from=job:x", "from=x", "gpu_mem=7&nodes=3&unknown=1"])
def test_an_odd_link_opens_a_form_or_a_404(client: Client, query: str) -> None:
    assert client.get(f"/jobs/new/?{query}").status_code in (200, 404)


def test_a_link_may_set_fields(client: Client) -> None:
    page = client.get("/jobs/new/?gpu_mem=7&nodes=3").content.decode()
    assert (field_value(page, "gpu_mem"), field_value(page, "nodes")) == ("7", "3")


def test_a_link_changes_what_a_clone_asks_for(client: Client, lin: User) -> None:
    asked = {"model": "A100", "exclusive": True, "cpu_milli": 500, "labels": {"rack": "r2"}}
    source = job_make(lin, gpu_mem_mib=4096, constraints=asked)
    page = client.get(f"/jobs/new/?from=job:{source.pk}&exclusive=&model=RTX 4090|H100&cpus=&gpu_mem=2").content.decode()
    assert 'name="exclusive" value="1" checked' not in page
    assert re.findall(r'name="model" value="([^"]*)" checked', page) == ["RTX 4090", "H100"]
    assert [field_value(page, name) for name in ("gpu_mem", "cpus", "labels")] == ["2", "", "rack=r2"]


@pytest.mark.parametrize(
    ("name", "value", "is_secret"),
    [
        ("HF_TOKEN", "x", True),
        ("wandb_api_key", "x", True),
        ("PGPASSWORD", "x", True),
        ("AUTHORIZATION", "x", True),
        ("URL", "https://user:pw@host/", True),
        ("URL", "https://host/a:b", False),
        ("EPOCHS", "3", False),
        ("PATH", "/usr/bin", False),
    ],
)
def test_what_counts_as_a_secret(name: str, value: str, is_secret: bool) -> None:
    assert env_is_secret(name, value) is is_secret


# --- the same from a shell ------------------------------------------------------------------------------------------


def test_the_shell_line_says_the_same_as_the_form(lin: User) -> None:
    fields = {
        **FILLED,
        "name": "it's; rm -rf /",
        "gpu_count": "2",
        "gpu_mem": "8",
        "nodes": "2",
        "time": "90m",
        "env": "A=b c\nMY_TOKEN=hush",
        "model": "RTX 4090",
        "hold": "1",
    }
    form = JobForm(fields, user=lin)
    assert form.is_valid(), form.errors
    words = shlex.split(command_line(form.body))
    assert words[:2] == ["nebula-ctl", "submit"]
    pairs = dict(itertools.pairwise(words))
    assert (pairs["--name"], pairs["--gpu-count"], pairs["--gpu-mem"], pairs["--nodes"]) == ("it's; rm -rf /", "2", "8G", "2")
    assert (pairs["--time"], pairs["--model"]) == ("90m", "RTX 4090")
    assert "A=b c" in words
    assert "MY_TOKEN" in words
    assert "hush" not in " ".join(words)
    assert "--hold" in words
    assert words[words.index("--", 2) + 1 :] == ["python", "train.py"]


def test_the_line_is_one_that_the_command_line_understands(lin: User) -> None:
    from typer.main import get_command

    from client.ctl import build

    form = JobForm({**FILLED, "name": "n", "gpu_mem": "8", "time": "2h", "grace_s": "5", "env": "A=1", "requeue": ""}, user=lin)
    assert form.is_valid()
    words = shlex.split(command_line({**form.body, "name": "--hold"}))
    submit = get_command(build()).commands["submit"]  # type: ignore[attr-defined]
    context = submit.make_context("submit", words[2:])
    assert (context.params["gpu_mem"], context.params["time"], context.params["grace"]) == ("8G", "2h", 5)
    assert (context.params["requeue"], context.params["name"], context.params["hold"]) == (False, "--hold", False)


def test_what_a_shell_would_expand_is_quoted_in_its_line(lin: User) -> None:
    form = JobForm({**FILLED, "command": "echo $HOME *.py"}, user=lin)
    assert form.is_valid()
    assert command_line(form.body).endswith("-- echo '$HOME' '*.py'")


def test_any_argv_survives_the_way_through_the_form(lin: User) -> None:
    for argv in (["a", "", "b c", "'", '"', "\\", "$x", "a\nb", "*", "☠", "-x=1;2|3"], ["sh", "-c", "a && b > c"]):
        job = job_make(lin, argv=argv)
        initial, _ = initial_from(job, reader=lin)
        assert command_split(initial["command"].replace("\n", "\r\n").replace("\r\n", "\n")) == argv


# --- in the place of a job that waits -----------------------------------------------------------------------------------


def test_a_smaller_job_takes_the_place_of_one_that_waits(client: Client, lin: User) -> None:
    old = job_make(lin, gpu_mem_mib=20_480)
    page = client.get(f"/jobs/new/?from=job:{old.pk}&gpu_mem=12&instead=1").content.decode()
    assert f'name="instead" value="{old.pk}" checked' in page
    answer = submitted(client, gpu_mem="12", instead=str(old.pk))
    new = Job.objects.exclude(pk=old.pk).get()
    assert answer.headers["Location"] == f"/jobs/{new.pk}/"
    old.refresh_from_db()
    assert (old.state, new.state, new.gpu_mem_mib) == ("CANCELLED", "WAITING", 12_288)
    # Sent once more, it is the same job.
    assert submitted(client, gpu_mem="12", instead=str(old.pk)).headers["Location"] == f"/jobs/{new.pk}/"
    assert Job.objects.count() == 2


def test_where_the_new_one_is_refused_the_old_one_waits_on(client: Client, lin: User) -> None:
    old = job_make(lin, gpu_mem_mib=20_480)
    answer = submitted(client, gpu_mem="500", instead=str(old.pk))
    assert "500 GiB" in answer.content.decode()
    assert f'name="instead" value="{old.pk}" checked' in answer.content.decode()
    old.refresh_from_db()
    assert (old.state, Job.objects.count()) == ("WAITING", 1)


def test_a_job_that_has_started_is_not_replaced(client: Client, lin: User) -> None:
    old = job_make(lin, state="RUNNING", epoch=1)
    answer = submitted(client, gpu_mem="4", instead=str(old.pk))
    assert answer.status_code == 409
    assert f"Job {old.pk} does not wait any more (RUNNING), so nothing was submitted in its place." in answer.content.decode()
    assert Job.objects.count() == 1


@pytest.mark.parametrize("which", ["{other}", "none", "99999999999999999999", "<q>"])
def test_a_job_in_place_of_one_that_is_not_ones_own_is_not_submitted(client: Client, which: str) -> None:
    other = job_make()
    answer = submitted(client, gpu_mem="4", instead=which.format(other=other.pk))
    other.refresh_from_db()
    assert (answer.status_code, other.state, Job.objects.count()) == (404, "WAITING", 1)
    page = answer.content.decode()
    assert "so nothing was submitted" in page
    assert re.search(r'name="gpu_mem"[^>]*value="4"', page)  # what was typed is still there
    assert "<q>" not in page
