"""What a user did that can't be done: a code and the numbers. Put into words, in the reader's language, at the edge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django.utils.translation import gettext, gettext_noop


class _Blank(dict[str, Any]):
    """A sentence with a hole is better than a second error while telling of the first."""

    def __missing__(self, key: str) -> str:
        return f"{{{key}}}"


class DomainError(Exception):
    """The request can't be done.

    ``code`` is stable and for programs, ``params`` are the numbers of the sentence, ``http_status`` is the API's answer.
    ``sentences`` has a translatable sentence for each code that the class uses, with ``{names}`` of params.
    """

    default_code: ClassVar[str] = "refused"
    default_status: ClassVar[int] = 400
    sentences: ClassVar[Mapping[str, str]] = {}

    def __init__(self, code: str | None = None, http_status: int | None = None, params: Mapping[str, Any] | None = None) -> None:
        self.code = code or self.default_code
        self.http_status = http_status or self.default_status
        self.params: dict[str, Any] = dict(params or {})
        super().__init__(f"{self.code} {self.params}" if self.params else self.code)

    @property
    def message(self) -> str:
        """The sentence in the reader's language; empty where another room words this code (jobs.wording).

        Users' text in params is inserted, never read as a template.
        """
        sentence = self.sentences.get(str(self.params.get("what", ""))) or self.sentences.get(self.code)
        return gettext(sentence).format_map(_Blank(self.params)) if sentence else ""


class QuotaExceeded(DomainError):
    """A limit is reached. params: ``used``, ``limit``, ``resets_at`` (ISO time; None = it does not reset), and what is
    counted as ``what``: gpu_hours | active_jobs | cards | model_cards (then also ``model`` and ``needed``). Always 403, never 429 (D17)."""

    default_code = "quota_exceeded"
    default_status = 403
    sentences = {
        "gpu_hours": gettext_noop("The GPU-hours of {owner} are used up: {used} of {limit} this month. They start anew at {resets_at}."),
        "active_jobs": gettext_noop("{owner} has {used} of at most {limit} active jobs. Wait until one ends, or cancel one."),
        "cards": gettext_noop("{owner} holds {used} of at most {limit} cards. Wait until a job ends."),
        "model_cards": gettext_noop(
            "{owner} may hold at most {limit} cards of {model} at once; this job asks for {needed}. "
            "Ask for fewer, for another model, or for a higher limit."
        ),
    }

    @property
    def used(self) -> float:
        return float(self.params["used"])

    @property
    def limit(self) -> float:
        return float(self.params["limit"])

    @property
    def resets_at(self) -> str | None:
        found = self.params.get("resets_at")
        return None if found is None else str(found)


class BadValue(DomainError):
    """A value that people, projects or tokens can't have."""

    default_code = "invalid"
    sentences = {
        "email_taken": gettext_noop("There is already a user {email}."),
        "project_name_taken": gettext_noop("No free project name like {name}."),
        "request_what": gettext_noop("{value} can't be asked for; there are: {known}."),
        "request_amount": gettext_noop("{value} is no amount to ask for; it must be from 1 to {most}."),
        "request_amount_empty": gettext_noop("Say how much more you ask for: a whole number from 1 to {most}."),
        "request_until": gettext_noop("{value} is no time to ask for: it must be in the future, at most {days} days from now."),
        "request_day": gettext_noop("{value} is no day; write it as 2026-07-31."),
        "request_why": gettext_noop(
            "The reason has {length} characters; write {least} to {most}: what runs, and what happens without it. "
            "A Chinese one counts as two."
        ),
        "request_project": gettext_noop("You are no member of a project {value}."),
        "request_lead_only": gettext_noop("Only a lead of {value} asks for more for the whole project."),
        "request_no_limit": gettext_noop("There is no such limit on you, so there is nothing to raise."),
        "request_many": gettext_noop("You have {most} open requests already; withdraw one, or wait for an answer."),
        "request_day_many": gettext_noop("You made {count} requests within a day; the most is {most}. Try again tomorrow."),
        "tokens_many": gettext_noop("You have {count} tokens that are good; the most is {most}. Revoke one first."),
        "tokens_day": gettext_noop("You made {count} tokens within a day; the most is {most}. Try again tomorrow."),
        "token_ttl": gettext_noop("A token must live for at least a second; got {ttl_s} s."),
        "token_scopes": gettext_noop("Scopes are one or more of: {known}; got {scopes}."),
        "token_project": gettext_noop("You may not submit to the project {project}, so you can't make a token for it."),
        "token_project_scope": gettext_noop("A project's token can read and submit, but not manage; leave the scope manage out."),
        "jwt_ttl": gettext_noop("A short token lives from 1 to {most_s} s; got {ttl_s} s."),
        "no_such_user": gettext_noop("There is no account with the address {email}; an admin makes one."),
        "user_inactive": gettext_noop("The account {email} is switched off."),
        "jwt_from_jwt": gettext_noop("A short token makes no other; use the token or the session that it came from."),
    }


class ProjectRefused(DomainError):
    """What can't be done to a project or its members as things are."""

    default_code = "project_refused"
    default_status = 409
    sentences = {
        "personal_project": gettext_noop("{project} is one person's own project; it has no other members."),
        "last_lead": gettext_noop("{member} is the only lead of {project}; make somebody else lead first."),
        "member_there": gettext_noop("{member} is a member of {project} already; change the role instead."),
        "project_there": gettext_noop("There is already a project {project}; choose another name."),
    }
