"""Every write of this room, by subject. Callers import from here; the modules hold the reasons."""

from jobs.services.control import job_cancel, job_hold, job_release
from jobs.services.finish import attempt_maybe_finish
from jobs.services.moves import event_add, job_move, jobs_move
from jobs.services.observe import observed_apply, orders_build, rank_observe
from jobs.services.ownerless import job_renew
from jobs.services.replace import job_replace
from jobs.services.schedule import schedule_pass
from jobs.services.stop import attempt_stop
from jobs.services.submit import job_submit
from jobs.services.upkeep import node_confirm_lost, upkeep_run

__all__ = [
    "attempt_maybe_finish",
    "attempt_stop",
    "event_add",
    "job_cancel",
    "job_hold",
    "job_move",
    "job_release",
    "job_renew",
    "job_replace",
    "job_submit",
    "jobs_move",
    "node_confirm_lost",
    "observed_apply",
    "orders_build",
    "rank_observe",
    "schedule_pass",
    "upkeep_run",
]
