"""How quickly a forecast is served: GET why, a page of the list, and the estimate of one more job, with a long queue behind them.

python -m bench.live.served [--jobs 1000] [--cards 20] [--database sqlite|postgres] [--rounds 30] [--json]

A real database, a real Redis, the whole REST stack in this process, without the network. The forecast itself is made before, by
jobs/forecaster.py. Milliseconds, medians; ``least`` is the quickest call, for busy machines.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

from bench.live.realpass import Pool, installation


def measure(*, jobs: int, cards: int, rounds: int) -> dict[str, Any]:
    from django.conf import settings
    from django.test import Client
    from django.utils import timezone

    from jobs.forecaster import Last, forecast_refresh
    from jobs.models import Job
    from jobs.services.schedule import schedule_pass
    from quotas.tokens import token_create

    settings.ALLOWED_HOSTS = ["*"]
    settings.THROTTLE_ESTIMATE = "off"
    pool = Pool(cards=cards)
    pool.telemetry_store()
    pool.submit(cards)
    schedule_pass()  # the cards are taken
    now = timezone.now()
    Job.objects.bulk_create(
        Job(
            owner=pool.owners[number % len(pool.owners)],
            project=pool.projects[number % len(pool.owners)],
            name=f"train-{number % 7}",
            argv=["python", "train.py"],
            time_limit_s=3600 * (1 + number % 5),
            predicted_s=1800.0 * (1 + number % 5),
            submitted_at=now,
            queued_at=now,
            wait_code="submitted",
            wait_at=now,
        )
        for number in range(jobs)
    )
    schedule_pass()
    began = time.perf_counter()
    if not forecast_refresh(Last()):
        raise SystemExit("no forecast was made")
    made_s = time.perf_counter() - began
    owner = pool.owners[0]
    _, token = token_create(user=owner, name="bench")
    client = Client(headers={"Authorization": f"Bearer {token}"})
    mine = Job.objects.filter(owner=owner, state="WAITING").order_by("-pk")[0].pk

    def timed(path: str, body: Any = None) -> dict[str, float]:
        took = []
        for _ in range(rounds):
            began = time.perf_counter()
            answer = client.get(path) if body is None else client.post(path, body, content_type="application/json")
            took.append(1e3 * (time.perf_counter() - began))
            if answer.status_code != 200:
                raise SystemExit(f"{path}: {answer.status_code} {answer.content[:200]!r}")
        return {"median": round(statistics.median(took), 1), "least": round(min(took), 1)}

    why = client.get(f"/api/v1/jobs/{mine}/why").json()
    return {
        "jobs": jobs,
        "cards": cards,
        "forecast_s": round(made_s, 2),
        "estimate": why["estimate"] is not None,
        "why_ms": timed(f"/api/v1/jobs/{mine}/why"),
        "list_ms": timed("/api/v1/jobs/?state=WAITING&page_size=50"),
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.live.served", description="How quickly a forecast is served.")
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--cards", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    for name in ("jobs", "cards", "rounds"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} is {getattr(args, name)}; it must be at least 1.")
    with installation(args.database):
        found = measure(jobs=args.jobs, cards=args.cards, rounds=args.rounds)
    if args.json:
        print(json.dumps(found))
    else:
        print(f"{found['jobs']} waiting × {found['cards']} cards: why {found['why_ms']} ms, list {found['list_ms']} ms")
        print(f"forecast made in {found['forecast_s']} s, told: {found['estimate']}")


if __name__ == "__main__":
    main()
