"""What comes in and goes out as JSON. Input is strict: a field of the wrong type or an unknown one is named, never guessed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from django.utils.functional import cached_property
from django.utils.translation import get_language
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from quotas.grants import ALL_SCOPES
from quotas.models import ApiToken


class StrictInteger(serializers.IntegerField):
    """A JSON number without a fraction. ``"5"``, ``true`` and 5.0 are refused: a typing error is told, not repaired."""

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int):
            self.fail("invalid")
        return int(data)


class StrictBoolean(serializers.BooleanField):
    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            raise serializers.ValidationError(_("Must be true or false."), code="invalid")
        return data


class StrictChar(serializers.CharField):
    """A JSON string, kept as it is: not trimmed, never made from a number."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("trim_whitespace", False)
        super().__init__(**kwargs)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


_fields: dict[tuple[type[serializers.Serializer[Any]], str | None], Any] = {}


class InputSerializer(serializers.Serializer[Any]):
    """Refuses fields that it does not know, and names the nearest that it does.

    All instances of a class share one set of fields for each language, which know nothing of a request: REST framework copies
    them for each instance, which cost a submit more than all of its checks. So fields must not be changed in an instance. For each
    language: the texts of limits stay in the language in which they were first told.
    """

    @cached_property
    def fields(self) -> Any:
        if self.partial:
            return super().fields
        key = (type(self), get_language())
        found = _fields.get(key)
        if found is None:
            found = _fields[key] = super().fields
        return found

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            unknown = [key for key in data if key not in self.fields]
            if unknown:
                raise serializers.ValidationError({str(key)[:60]: [self._unknown(str(key))] for key in unknown[:10]}, code="unknown_field")
        return super().to_internal_value(data)

    def _unknown(self, key: str) -> str:
        near = difflib.get_close_matches(key[:60], list(self.fields), n=1, cutoff=0.6)
        if near:
            return _("There is no such field. Did you mean %(near)s?") % {"near": near[0]}
        return _("There is no such field. Known are: %(known)s.") % {"known": ", ".join(self.fields)}


_TTL_MOST_S = 10 * 365 * 86_400
_NAME_HELP = "Tells your tokens apart, such as the machine's name."
_TTL_HELP = "Seconds until it expires; default 1 year."
_SCOPES_HELP = "read: look; submit: submit, cancel, hold and release jobs; manage: all else that you may."


def _scopes_field(**kwargs: Any) -> serializers.ListField:
    child = serializers.ChoiceField(choices=ALL_SCOPES)
    return serializers.ListField(child=child, min_length=1, max_length=len(ALL_SCOPES), help_text=_SCOPES_HELP, **kwargs)


class TokenRequest(InputSerializer):
    email = StrictChar(max_length=254, trim_whitespace=True)
    password = StrictChar(max_length=1000, style={"input_type": "password"})
    name = StrictChar(max_length=80, required=False, default="api", help_text=_NAME_HELP)
    ttl_s = StrictInteger(min_value=60, max_value=_TTL_MOST_S, required=False, allow_null=True, help_text=_TTL_HELP)
    scopes = _scopes_field(required=False, default=list(ALL_SCOPES))


class TokenNew(InputSerializer):
    name = StrictChar(max_length=80, help_text=_NAME_HELP)
    ttl_s = StrictInteger(min_value=60, max_value=_TTL_MOST_S, required=False, allow_null=True, help_text=_TTL_HELP)
    scopes = _scopes_field(required=False, default=["read", "submit"])
    project = StrictChar(max_length=60, required=False, allow_null=True, help_text="Confines the token to this project.")


class TokenAnswer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    token = serializers.CharField(help_text="Shown once and never again.")
    prefix = serializers.CharField()
    expires_at = serializers.DateTimeField(allow_null=True)
    scopes = serializers.ListField(child=serializers.CharField())
    project = serializers.CharField(allow_null=True)


class JwtRequest(InputSerializer):
    ttl_s = StrictInteger(min_value=1, max_value=900, required=False, default=900, help_text="Seconds until it expires, at most 900.")
    scopes = _scopes_field(required=False)


class JwtAnswer(serializers.Serializer[Any]):
    token = serializers.CharField()
    expires_at = serializers.DateTimeField()
    scopes = serializers.ListField(child=serializers.CharField())


class ApiTokenSerializer(serializers.Serializer[Any]):
    """Loaded with its project."""

    id = serializers.IntegerField()
    name = serializers.CharField()
    prefix = serializers.CharField()
    scopes = serializers.SerializerMethodField()
    project = serializers.CharField(source="project.name", default=None, allow_null=True, help_text="null = personal")
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_scopes(self, token: ApiToken) -> list[str]:
        return token.scopes.split()


class MeProject(serializers.Serializer[Any]):
    name = serializers.CharField()
    title = serializers.CharField()
    role = serializers.CharField(help_text="lead, user or viewer")
    is_personal = serializers.BooleanField()


class MeQuota(serializers.Serializer[Any]):
    """null = no limit. What is granted on top for a time is in the limits."""

    gpu_hours = serializers.IntegerField(allow_null=True)
    used_gpu_hours = serializers.FloatField()
    resets_at = serializers.DateTimeField(help_text="When the month's counter starts anew: local midnight of the installation's zone.")
    max_active_jobs = serializers.IntegerField(allow_null=True)
    active_jobs = serializers.IntegerField()
    max_cards = serializers.IntegerField(allow_null=True)
    held_cards = serializers.IntegerField()
    model_cards = serializers.DictField(
        child=serializers.IntegerField(), help_text="Card model → cards of it that may be held at once; others have no limit of their own."
    )
    zone = serializers.CharField(help_text="The zone in which the month ends.")


class Me(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    email = serializers.CharField()
    is_staff = serializers.BooleanField()
    language = serializers.CharField()
    zone = serializers.CharField()
    projects = MeProject(many=True)
    quota = MeQuota()
