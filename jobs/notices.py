"""What everybody should know now: silent nodes, cards out of service, memory that was not given back."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.lifecycle import SliceState
from jobs.models import Slice
from nodes import telemetry
from nodes.event_words import state_reason_text
from nodes.formats import gib
from nodes.models import Gpu, GpuState, Node, NodeState
from nodes.selectors import pool_notices
from nodes.states import look
from nodes.wording import cordon_text, notice_text

SHOWN = 8
CARDS_READ = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """``text`` is one sentence; ``title`` says what it is about, ``url`` leads there, ``at`` since when."""

    tone: str
    icon: str
    title: str
    text: str = ""
    url: str = ""
    at: datetime | None = None


def notices_read() -> list[Notice]:
    """The weightiest first, at most ``SHOWN``. Five queries and one Redis round trip."""
    found = [_pool_notice(item) for item in pool_notices()]
    if telemetry.is_away():
        found.insert(0, Notice(tone="warn", icon="warn", title=_("Redis is away"), text=notice_text("redis_away", {})))
    return [*_nodes(), *_cards(), *_quarantined(), *found][:SHOWN]


def _pool_notice(item: dict[str, Any]) -> Notice:
    is_simulated = item["code"] == "simulated_cards"
    text = notice_text(item["code"], item["params"])
    if is_simulated:
        return Notice(tone="sim", icon="flask", title=_("Simulated cards"), text=text)
    return Notice(tone="warn", icon="warn", title=_("Nothing is called lost for now"), text=text)


def _nodes() -> list[Notice]:
    rows = Node.objects.filter(state__in=(NodeState.UNKNOWN, NodeState.DOWN)).order_by("-state_at")[:SHOWN]
    found = []
    for node in rows:
        shown = look("node", node.state)
        text = _("Jobs there are kept; nothing new starts there until it is back.") if node.state == NodeState.UNKNOWN else ""
        title = _("%(node)s is silent") if node.state == NodeState.UNKNOWN else _("%(node)s is down")
        found.append(
            Notice(tone=shown.tone, icon=shown.icon, title=title % {"node": node.name}, text=text, url=_node_url(node), at=node.state_at)
        )
    shown = look("node", "CORDONED")
    for node in Node.objects.filter(cordoned=True).exclude(state=NodeState.RETIRED).order_by("name")[:SHOWN]:
        title = _("%(node)s takes no new work") % {"node": node.name}
        found.append(Notice(tone=shown.tone, icon=shown.icon, title=title, text=cordon_text(node.cordon_reason), url=_node_url(node)))
    return found


def _cards() -> list[Notice]:
    """One notice a node and state: when a whole machine loses its cards, one line says it."""
    sick = (GpuState.SUSPECT, GpuState.ISOLATED, GpuState.MISSING)
    rows = Gpu.objects.filter(state__in=sick).exclude(node__state=NodeState.RETIRED).select_related("node")
    groups: dict[tuple[str, str], list[Gpu]] = defaultdict(list)
    for gpu in rows.order_by("-state_at", "node__name", "index")[:CARDS_READ]:
        groups[gpu.node.name, gpu.state].append(gpu)
    found = []
    for (node, state), gpus in list(groups.items())[:SHOWN]:
        shown, first = look("gpu", state), gpus[0]
        url = reverse("gpu-detail", args=(node, first.index)) if len(gpus) == 1 else _node_url(first.node)
        place = f"{node} gpu{first.index}" if len(gpus) == 1 else _("%(node)s, %(count)d cards") % {"node": node, "count": len(gpus)}
        title = _("%(place)s: %(state)s") % {"place": place, "state": shown.word}
        text = state_reason_text(first.state_reason)
        found.append(Notice(tone=shown.tone, icon=shown.icon, title=title, text=text, url=url, at=first.state_at))
    return found


def _quarantined() -> list[Notice]:
    rows = list(Slice.objects.filter(state=SliceState.QUARANTINED).select_related("gpu__node").order_by("-pk")[:SHOWN])
    if not rows:
        return []
    first = rows[0].gpu
    title = ngettext("%(count)d piece of memory is set aside", "%(count)d pieces of memory are set aside", len(rows)) % {"count": len(rows)}
    text = _("%(size)s on %(place)s were not given back when a job ended.") % {
        "size": gib(sum(row.mib for row in rows if row.gpu_id == first.pk)),
        "place": f"{first.node.name} gpu{first.index}",
    }
    shown = look("slice", "QUARANTINED")
    return [
        Notice(tone=shown.tone, icon=shown.icon, title=title, text=text, url=reverse("gpu-detail", args=(first.node.name, first.index)))
    ]


def _node_url(node: Node) -> str:
    return reverse("node-detail", args=(node.name,))
