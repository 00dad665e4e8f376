"""What the job room's JSON looks like, for OpenAPI. jobs/serializers.py makes it; a test compares the two."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from jobs.lifecycle import JobState, OnNodeLoss


class EstimateSchema(serializers.Serializer[Any]):
    p50 = serializers.DateTimeField(allow_null=True, help_text="The job starts by then in one of two cases; null: not known.")
    p90 = serializers.DateTimeField(allow_null=True, help_text="In nine of ten.")
    later_than = serializers.DateTimeField(allow_null=True, help_text="The forecast ended there; what is null above is later.")
    text = serializers.CharField(help_text="In the language of Accept-Language.")
    place = serializers.CharField(help_text="Where, if all goes as for p50; empty: not known.")
    made_at = serializers.DateTimeField()
    age_s = serializers.FloatField()
    is_stale = serializers.BooleanField(help_text="Older than 15 s: a new one is being made.")


class WaitSchema(serializers.Serializer[Any]):
    code = serializers.CharField()
    params = serializers.DictField()
    text = serializers.CharField(help_text="In the language of Accept-Language.")
    position = serializers.IntegerField(allow_null=True, help_text="1 = head of the queue; null while held, and in the answer of a submit.")
    checked_at = serializers.DateTimeField(allow_null=True)
    estimate = EstimateSchema(allow_null=True, help_text="null: none has been made yet, or the job is held.")


class EndSchema(serializers.Serializer[Any]):
    reason = serializers.CharField()
    params = serializers.DictField()
    text = serializers.CharField()
    exit_code = serializers.IntegerField(allow_null=True)


class RankGpuSchema(serializers.Serializer[Any]):
    uuid = serializers.CharField()
    short = serializers.CharField()
    index = serializers.IntegerField()
    model = serializers.CharField()
    mib = serializers.IntegerField()
    exclusive = serializers.BooleanField()
    simulated = serializers.BooleanField()


class RankSchema(serializers.Serializer[Any]):
    index = serializers.IntegerField()
    node = serializers.CharField()
    desired = serializers.CharField()
    observed = serializers.CharField()
    exit_code = serializers.IntegerField(allow_null=True)
    exit_signal = serializers.IntegerField(allow_null=True)
    log_bytes = serializers.IntegerField()
    gpus = RankGpuSchema(many=True)


class AttemptSchema(serializers.Serializer[Any]):
    epoch = serializers.IntegerField()
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    nodes = serializers.ListField(child=serializers.CharField(), help_text="Names of the nodes, in the order of the ranks.")
    ranks = RankSchema(many=True, required=False, help_text="Not in lists.")


class ConstraintsSchema(serializers.Serializer[Any]):
    """Only what was asked for is there."""

    arch = serializers.CharField(required=False)
    model = serializers.CharField(required=False)
    vendor = serializers.CharField(required=False)
    cuda_min = serializers.CharField(required=False)
    driver_min = serializers.CharField(required=False)
    labels = serializers.DictField(child=serializers.CharField(), required=False)


class EfficiencySchema(serializers.Serializer[Any]):
    """Measured once, a minute or two after the end; null = nobody told it."""

    asked_mib = serializers.IntegerField(help_text="Memory held on a card.")
    peak_mib = serializers.IntegerField(allow_null=True, help_text="Memory that its processes used on a card at most.")
    util_pct = serializers.IntegerField(allow_null=True, help_text="Mean use of its cards; on shared cards others' too.")
    idle_pct = serializers.IntegerField(allow_null=True, help_text="Share of the time in which its cards did nothing.")
    is_shared = serializers.BooleanField()
    gpu_hours = serializers.FloatField()
    idle_gpu_hours = serializers.FloatField(allow_null=True)
    samples = serializers.IntegerField()


class JobRowSchema(serializers.Serializer[Any]):
    """A job as lists have it."""

    id = serializers.IntegerField()
    name = serializers.CharField()
    state = serializers.ChoiceField(choices=[s.value for s in JobState])
    owner = serializers.CharField(help_text="E-mail address.")
    project = serializers.CharField()
    workdir = serializers.CharField()
    secrets = serializers.ListField(child=serializers.CharField(), help_text="Names: NAME = a file, NAME=VARIABLE = a variable.")
    gpu_count = serializers.IntegerField()
    gpu_mem_mib = serializers.IntegerField(allow_null=True, help_text="null = whole GPUs.")
    nodes = serializers.IntegerField()
    constraints = ConstraintsSchema()
    cpu_milli = serializers.IntegerField(allow_null=True, help_text="Thousandths of a core on each node; null: none are asked for.")
    host_mem_mib = serializers.IntegerField(allow_null=True, help_text="Host memory on each node; null: none is asked for.")
    exclusive = serializers.BooleanField(help_text="Whole GPUs, however little memory is asked for.")
    time_limit_s = serializers.IntegerField(allow_null=True)
    grace_s = serializers.IntegerField(allow_null=True)
    idle_after_s = serializers.IntegerField(allow_null=True)
    priority = serializers.IntegerField()
    queue = serializers.CharField(help_text="Empty: the policy's first.")
    qos = serializers.CharField(help_text="Empty: none.")
    requeue = serializers.BooleanField()
    requeues = serializers.IntegerField()
    on_node_loss = serializers.ChoiceField(choices=[o.value for o in OnNodeLoss])
    checkpoint = serializers.CharField()
    held = serializers.BooleanField()
    held_why = serializers.CharField()
    want_cancel = serializers.BooleanField()
    kind = serializers.CharField()
    wait = WaitSchema(allow_null=True)
    end = EndSchema(allow_null=True)
    attempt = AttemptSchema(allow_null=True)
    submitted_at = serializers.DateTimeField()
    queued_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    efficiency = EfficiencySchema(allow_null=True, required=False, help_text="Of one job that has ended; null in lists.")


class RefusedFileSchema(serializers.Serializer[Any]):
    rank = serializers.IntegerField()
    name = serializers.CharField()
    size = serializers.IntegerField()
    code = serializers.CharField()
    text = serializers.CharField(help_text="In the language of Accept-Language.")


class KeptSchema(serializers.Serializer[Any]):
    """What is kept of the bytes that a job made."""

    file_bytes = serializers.IntegerField()
    file_count = serializers.IntegerField()
    log_bytes = serializers.IntegerField(help_text="Of its output, as of half a minute ago.")
    refused_count = serializers.IntegerField(help_text="Files that were not taken.")
    refused = RefusedFileSchema(many=True, help_text="The first of them, with the reason.")
    files_until = serializers.DateTimeField(allow_null=True, help_text="When its files are removed; null: never, or it has not ended.")
    logs_until = serializers.DateTimeField(allow_null=True)
    files_removed_at = serializers.DateTimeField(allow_null=True)
    logs_removed_at = serializers.DateTimeField(allow_null=True)


class JobSchema(JobRowSchema):
    kept = KeptSchema(allow_null=True, required=False, help_text="Of one job whose output the reader may see.")
    argv = serializers.ListField(child=serializers.CharField())
    env = serializers.DictField(child=serializers.CharField(allow_null=True), help_text="Values are null for anybody but the owner.")


class LogSchema(serializers.Serializer[Any]):
    job = serializers.IntegerField()
    attempt = serializers.IntegerField(allow_null=True, help_text="null while the job has not started.")
    rank = serializers.IntegerField()
    offset = serializers.IntegerField(help_text="In bytes.")
    next_offset = serializers.IntegerField(help_text="Ask for this next.")
    length = serializers.IntegerField(help_text="Bytes that have arrived.")
    is_complete = serializers.BooleanField(help_text="No more will come.")
    text = serializers.CharField()


class EventSchema(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    at = serializers.DateTimeField()
    code = serializers.CharField()
    params = serializers.DictField()
    text = serializers.CharField()
    from_state = serializers.CharField()
    to_state = serializers.CharField()
    epoch = serializers.IntegerField()
    by = serializers.CharField(allow_null=True)


class WhySchema(serializers.Serializer[Any]):
    state = serializers.ChoiceField(choices=[s.value for s in JobState])
    code = serializers.CharField()
    params = serializers.DictField()
    text = serializers.CharField()
    position = serializers.IntegerField(allow_null=True)
    checked_at = serializers.DateTimeField(allow_null=True)
    ahead = serializers.IntegerField(allow_null=True)
    estimate = EstimateSchema(allow_null=True)


class AlternativeSchema(serializers.Serializer[Any]):
    text = serializers.CharField(help_text="What is other than asked for, in the language of Accept-Language.")
    set = serializers.DictField(help_text="Fields of a submit to set; null = leave it out. `constraints` is merged.")
    p50 = serializers.DateTimeField()
    p90 = serializers.DateTimeField(allow_null=True)
    start = serializers.CharField(help_text="Both times in words.")
    place = serializers.CharField()
    command = serializers.CharField(help_text="The same as a line of the shell.")


class ForecastSchema(serializers.Serializer[Any]):
    verdict = serializers.ChoiceField(choices=["starts", "waits", "held", "refused", "never"])
    code = serializers.CharField(help_text="Empty for starts.")
    params = serializers.DictField()
    text = serializers.CharField(help_text="In the language of Accept-Language.")
    position = serializers.IntegerField(allow_null=True)
    p50 = serializers.DateTimeField(allow_null=True)
    p90 = serializers.DateTimeField(allow_null=True)
    later_than = serializers.DateTimeField(allow_null=True, help_text="The estimate was cut off there; what is null above is later.")
    start = serializers.CharField(help_text="When it starts, in words; empty: not known.")
    place = serializers.CharField()
    age_s = serializers.FloatField(help_text="How old what it was judged by is.")


class ForecastFullSchema(ForecastSchema):
    alternatives = AlternativeSchema(many=True, help_text="At most five that start sooner, the nearest to what was asked first.")


class ArtifactSchema(serializers.Serializer[Any]):
    attempt = serializers.IntegerField()
    rank = serializers.IntegerField()
    name = serializers.CharField()
    size = serializers.IntegerField()
    sha256 = serializers.CharField()
    created_at = serializers.DateTimeField()


class PoolNotice(serializers.Serializer[Any]):
    code = serializers.CharField()
    text = serializers.CharField()


class UsageSchema(serializers.Serializer[Any]):
    nodes = serializers.DictField(child=serializers.IntegerField(), help_text="total, and how many are in each state.")
    gpus = serializers.DictField(child=serializers.IntegerField(), help_text="total = idle + busy + maintenance.")
    vram = serializers.DictField(child=serializers.IntegerField(), help_text="total_mib, free_mib")
    jobs = serializers.DictField(child=serializers.IntegerField(), help_text="waiting, running")
    mine = serializers.DictField(help_text="As quota of /me.")
    simulated = serializers.BooleanField(help_text="At least one GPU is simulated.")
    notices = PoolNotice(many=True)
