"""Why a request about a node is refused."""

from __future__ import annotations

from django.utils.translation import gettext_noop

from quotas.errors import DomainError


class EnrolRefused(DomainError):
    """The machine may not join."""

    default_code = "enrol_token_invalid"
    default_status = 401
    sentences = {
        # One sentence for unknown, used and expired: it must not tell a guesser which of them it was.
        "enrol_token_invalid": gettext_noop("This enrolment token is unknown, used or expired. Ask an admin for a new one."),
    }


class NodeRefused(DomainError):
    """The node can't do this now, or the request about it makes no sense."""

    default_code = "invalid"
    default_status = 400
    sentences = {
        "claim_none": gettext_noop("Nobody waits to speak for {node} now: there is nothing to confirm. Start the agent there first."),
        "claim_other": gettext_noop(
            "Not the agent that you looked at, but {hostname} ({peer}) asks to speak for {node} now. "
            "Look at that one before you confirm it."
        ),
        "inventory_none": gettext_noop("{node} has no cards that wait to be confirmed."),
        "node_busy": gettext_noop("Node {node} is {state} or still holds cards. Let its jobs end first, or enrol under another name."),
        "node_retired": gettext_noop("Node {node} is retired. Enrol it anew to use it."),
        "cordon_reason_missing": gettext_noop("Say why the node is drained, in 1–200 characters; got {length}."),
        "cordon_until_past": gettext_noop("The end of the drain must be in the future; {until} is past."),
        "token_ttl": gettext_noop("An enrolment token lives for 1–{limit_s} s; got {ttl_s} s."),
        "node_label_key": gettext_noop("{key} is no name of a label; write 1–63 letters, digits and . _ - /, such as rack or net/fabric."),
        "node_label_value": gettext_noop(
            "The value of the label {key} has {length} characters; write at most {limit} visible ones, no blank at the ends."
        ),
        "node_labels_many": gettext_noop("A node carries at most {limit} labels; this would make {count}. Take some away first."),
        "verb_unknown": gettext_noop("{verb} is not a command of an agent; there are: {verbs}."),
        "args_too_long": gettext_noop("The arguments of a command may have {limit} bytes; got {length}."),
        "card_reason": gettext_noop("Say why, in 1–{limit} characters; got {length}."),
        "card_busy": gettext_noop(
            "gpu{index} on {node} is held by {slices} slices ({mib} MiB). Let its jobs end, or isolate it: they are requeued then."
        ),
        "card_missing": gettext_noop("gpu{index} on {node} is not seen by its agent; there is nothing to act on."),
        "incident_note": gettext_noop("Write what it was and what came of it, in 3–{limit} characters; got {length}."),
        "incident_not_over": gettext_noop(
            "Incident {incident} is not over: its card is not back in service yet. Return or replace it first, then write the review."
        ),
        "drill_not_simulated": gettext_noop("{node} has real cards. Drills are for simulated nodes only: {nodes}."),
        "command_ttl": gettext_noop("A command waits for 1–{limit_s} s; got {ttl_s} s."),
    }


class AlertRefused(DomainError):
    """What is asked of an alert or a mute can't be done."""

    default_code = "invalid"
    sentences = {
        "alert_resolved": gettext_noop("Alert {alert} is resolved; there is nothing to acknowledge any more."),
        "alert_note": gettext_noop("A note may have {limit} characters; got {length}."),
        "mute_reason": gettext_noop("Say why nobody is to be told, in 1–{limit} characters; got {length}."),
        "mute_of_nothing": gettext_noop("Name what to mute: a rule, a node or a card."),
        "mute_of_unknown": gettext_noop("There is nothing called {name}."),
        "mute_until_past": gettext_noop("The end of the mute must be in the future; {until} is past."),
    }
