"""``manage.py simulate``: what would have been under another policy; docs/simulating.md."""

from __future__ import annotations

import csv
import os
import sys
import time
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser, OutputWrapper
from django.db import DatabaseError
from django.utils import timezone, translation
from django.utils.dateparse import parse_datetime

from jobs.parsing import Unreadable, time_s
from jobs.policy import PolicyError
from jobs.replays import workload_of
from jobs.scheduler.clusters import Cluster, WorkloadError, cluster_write
from jobs.scheduler.workload import Workload, workload_write
from jobs.simulation_report import report_json, report_text
from jobs.simulations import (
    MOST_JOBS,
    MOST_REPLICAS,
    Source,
    cluster_of,
    numbers_of,
    policies_of,
    report_of,
    source_last,
    source_made,
    source_trace,
    whole,
)
from jobs.wording import reason_text
from jobs.wording.simulations import error_text, interrupted_text

TELL_AFTER_S, TELL_EVERY_S = 2.0, 1.0


class Command(BaseCommand):
    help = "Run the installation's own past, a trace or made jobs through the scheduler under other policies, and compare."

    def add_arguments(self, parser: CommandParser) -> None:
        jobs = parser.add_mutually_exclusive_group(required=True)
        jobs.add_argument("--last", metavar="SPAN", help="this installation's own jobs of so long: 30d, 12h, 2d 6h")
        jobs.add_argument("--trace", metavar="FILE.csv", type=Path, help="jobs from a file")
        jobs.add_argument("--generate", metavar="JOBS", help="so many made jobs, the same for the same seed")
        parser.add_argument("--until", metavar="TIME", help="where the span of --last ends, ISO 8601 with its zone (default: now)")
        parser.add_argument("--cluster", metavar="FILE.json|own", default="own", help="the cards (default: this installation's)")
        parser.add_argument("--preset", metavar="NAME[:NODES]", help="a made cluster instead: abc = A100, V100 and T4 nodes, 10 of them")
        parser.add_argument(
            "--policy", action="append", default=[], metavar="ORDER", help="fair, fifo, priority, drf, capacity; may repeat"
        )
        parser.add_argument("--against", default="current", metavar="ORDER", help="what the others are compared with (default: current)")
        parser.add_argument("--strategy", metavar="NAME", help="where --policy places jobs: best-fit, load-balance, first-fit …")
        parser.add_argument("--set", action="append", default=[], metavar="FIELD=NUMBER", help="another number of --policy; may repeat")
        parser.add_argument("--no-limits", action="store_true", help="of a trace: no job has a time limit")
        parser.add_argument("--load", default="1", metavar="A[,B…]", help="so many times as many jobs an hour: 1.3, or 0.7,0.85,1")
        parser.add_argument("--seed", type=int, default=1, metavar="N", help="for made jobs and replicas (default: 1)")
        parser.add_argument("--replicas", default="1", metavar="N", help="mean of so many runs, each submit moved by up to 10 minutes")
        parser.add_argument("--watts", metavar="BUSY,IDLE", help="what a card draws: tells energy in kWh")
        parser.add_argument("--export", metavar="FILE.csv", type=Path, help="write the jobs to a file; people and job names as numbers")
        parser.add_argument("--export-cluster", metavar="FILE.json", type=Path, help="write the cluster to a file")
        parser.add_argument("--names", action="store_true", help="names in --export as they are")
        parser.add_argument("--all", action="store_true", dest="show_all", help="all users and projects, not the 15 largest changes")
        parser.add_argument("--json", action="store_true", help="print the result as JSON")
        parser.add_argument("--language", choices=("en", "zh-hans"), help="of the text (default: from LANG)")

    def handle(self, *args: Any, **options: Any) -> None:
        with translation.override(options["language"] or _language()):
            try:
                self._run(options)
            except WorkloadError as error:
                params = dict(error.params)
                if error.code == "row_request":
                    params["reason"] = reason_text(params["reason"], params)
                raise CommandError(error_text(error.code, params), returncode=2) from error
            except DatabaseError as error:
                why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                raise CommandError(error_text("database", {"why": why}), returncode=2) from error
            except PolicyError as error:
                raise CommandError(str(error), returncode=2) from error
            except KeyboardInterrupt:
                raise CommandError(interrupted_text(), returncode=130) from None

    def _run(self, options: dict[str, Any]) -> None:
        # 1. What was asked for: whatever is wrong is said before anything long begins.
        policies = policies_of(orders=options["policy"], against=options["against"], strategy=options["strategy"], settings=options["set"])
        loads = numbers_of("--load", options["load"], least=0.01, most=100)
        replicas = whole("--replicas", options["replicas"], least=1, most=MOST_REPLICAS)
        watts = numbers_of("--watts", options["watts"], least=0, most=100_000, count=2) if options["watts"] else None
        for option in ("export", "export_cluster"):
            if options[option] is not None and options[option].exists():
                raise WorkloadError("file_exists", path=options[option])
        # 2. The jobs and the cards.
        source = _source(options)
        is_export = self._export(source, options)
        if is_export and not (options["policy"] or options["strategy"] or options["set"] or options["json"]):
            return
        # 3. Each policy at each load.
        progress = _Progress(self.stderr if options["verbosity"] else None)
        try:
            report = report_of(
                source,
                policies,
                loads=loads,
                seed=options["seed"],
                replicas=replicas,
                watts=(watts[0], watts[1]) if watts else None,
                watch=progress.tell,
            )
        finally:
            progress.close()
        self.stdout.write(report_json(report) if options["json"] else report_text(report, show_all=options["show_all"]))

    def _export(self, source: Source, options: dict[str, Any]) -> bool:
        """Write what was asked for; whether anything was."""
        if options["export"] is not None:
            workload = Workload(arrivals=source.scenario.arrivals, users=source.users, projects=source.projects)
            if source.fields["kind"] == "last":
                workload = workload_of(workload, since=source.scenario.cluster.now, with_names=options["names"])
            with _created(options["export"]) as file:
                csv.writer(file).writerows(workload_write(workload, since=source.scenario.cluster.now))
        if options["export_cluster"] is not None:
            with _created(options["export_cluster"]) as file:
                file.write(cluster_write(source.scenario.cluster))
        return options["export"] is not None or options["export_cluster"] is not None


def _source(options: dict[str, Any]) -> Source:
    text = None if options["cluster"] == "own" else _text(Path(options["cluster"]))
    if text is not None and options["preset"]:
        raise WorkloadError("both", one="--cluster", other="--preset")
    if options["last"] is not None:
        since, until = _period(options["last"], options["until"])
        others = cluster_of(text=text, preset=options["preset"]) if text is not None or options["preset"] else None
        return source_last(since=since, until=until, cluster=others)
    if options["until"] is not None:
        raise WorkloadError("only_with", option="--until", other="--last")
    cluster: Cluster = cluster_of(text=text, preset=options["preset"])
    if options["trace"] is not None:
        lines = _text(options["trace"]).splitlines(keepends=True)
        return source_trace(lines, name=options["trace"].name, cluster=cluster, limits=not options["no_limits"])
    return source_made(jobs=whole("--generate", options["generate"], least=1, most=MOST_JOBS), seed=options["seed"], cluster=cluster)


def _period(last: str, until: str | None) -> tuple[datetime, datetime]:
    try:
        span = timedelta(seconds=time_s(last))
    except Unreadable as error:
        raise WorkloadError("span", value=last[:60]) from error
    end = timezone.now()
    if until is not None:
        try:
            found = parse_datetime(until)
        except ValueError:
            found = None
        if found is None or found.tzinfo is None:
            raise WorkloadError("until", value=until[:60])
        end = found
    try:
        return end - span, end
    except OverflowError as error:
        raise WorkloadError("span", value=last[:60]) from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise WorkloadError("unreadable", path=path, why=error.strerror or "") from error
    except UnicodeDecodeError as error:
        raise WorkloadError("not_text", path=path) from error


def _created(path: Path) -> Any:
    """A new file for its owner alone: it tells who ran what."""
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8", newline="")
    except OSError as error:
        raise WorkloadError("unwritable", path=path, why=error.strerror or "") from error


def _language() -> str:
    """The reader's language as nebula-ctl takes it: NEBULA_LANG, else LC_ALL, LC_MESSAGES, LANG."""
    words: Iterable[str] = (os.environ.get(name, "") for name in ("NEBULA_LANG", "LC_ALL", "LC_MESSAGES", "LANG"))
    return "zh-hans" if next((word for word in words if word), "").lower().startswith("zh") else "en"


class _Progress:
    """How far a long run is, on standard error: one line that is written over on a terminal, a line now and then elsewhere."""

    def __init__(self, out: OutputWrapper | None) -> None:
        self._out = out
        self._is_terminal = sys.stderr.isatty()
        self._next = time.monotonic() + TELL_AFTER_S
        self._told = False

    def tell(self, name: str, came: int, total: int) -> None:
        if self._out is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + (TELL_EVERY_S if self._is_terminal else 10 * TELL_EVERY_S)
        self._told = True
        text = f"{name}: {came} / {total}"
        self._out.write(f"\r\033[K{text}" if self._is_terminal else text, ending="" if self._is_terminal else "\n")
        self._out.flush()

    def close(self) -> None:
        if self._out is not None and self._told and self._is_terminal:
            self._out.write("\r\033[K", ending="")
            self._out.flush()
