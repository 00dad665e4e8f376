"""The three people of the demo, with their passwords and command line profiles. Needs Django."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from agent.config import file_write_private
from client.errors import ProfileError
from client.profile import Profile, profile_read, profile_save
from nebulagrid.demo import FOLDER
from quotas.models import Membership, Project, Quota, User
from quotas.services import quota_for, user_create
from quotas.tokens import token_authenticate, token_create

PROJECT = "vision-lab"


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """``max_cards``: held at once, None = no limit. ``language`` and ``zone`` empty = the installation's."""

    email: str
    name: str
    role: str
    language: str = ""
    zone: str = ""
    max_cards: int | None = None

    @property
    def key(self) -> str:
        return self.email.partition("@")[0]


PEOPLE = (
    Person(email="lead@lab.example", name="Lab lead", role=Membership.Role.LEAD),
    Person(email="researcher@lab.example", name="Researcher", role=Membership.Role.USER),
    # Reads Chinese, and may hold two cards at once: one job waits for that.
    Person(email="student@lab.example", name="学生", role=Membership.Role.USER, language="zh-hans", zone="Asia/Shanghai", max_cards=2),
)


def people_provide(*, data: Path, endpoint: str, ca_file: str | None) -> list[tuple[Person, str]]:
    """Make who is not there yet, with a password in ``demo/KEY.password`` and a profile ``demo/KEY.json`` of mode 0600.

    Returns each with the password, or with where to look if it was changed by hand. Idempotent.
    """
    folder = data / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    project, _ = Project.objects.get_or_create(name=PROJECT, defaults={"title": "Vision lab · 视觉实验室"})
    return [(person, _person_provide(person, folder, project, endpoint=endpoint, ca_file=ca_file)) for person in PEOPLE]


def _person_provide(person: Person, folder: Path, project: Project, *, endpoint: str, ca_file: str | None) -> str:
    path = folder / f"{person.key}.password"
    user = User.objects.filter(email=person.email).first()
    if user is None:
        password = secrets.token_urlsafe(9)
        file_write_private(path, password + "\n")
        user = user_create(email=person.email, password=password, first_name=person.name, language=person.language, zone=person.zone)
        Quota.objects.filter(pk=quota_for(user).pk).update(max_cards=person.max_cards)
    Membership.objects.get_or_create(project=project, user=user, defaults={"role": person.role})
    profile = folder / f"{person.key}.json"
    try:
        token = profile_read(profile).get("token")
    except ProfileError:
        token = None
    if not token or token_authenticate(token) is None:
        _row, token = token_create(user=user, name="make demo")
    profile_save(profile, Profile(endpoint=endpoint, token=token, ca_file=ca_file))
    kept = path.read_text().strip() if path.exists() else ""
    return kept if kept and user.check_password(kept) else "(changed by hand)"
