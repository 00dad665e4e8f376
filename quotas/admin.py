"""People, projects and limits in the admin. Counters, charges and secrets are shown, never edited: services own them."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group
from django.db.models import QuerySet
from django.forms import CharField, ModelForm, ValidationError
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext
from unfold.admin import ModelAdmin, TabularInline
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm
from unfold.widgets import UnfoldAdminTextInputWidget

from quotas import (
    notice_admin,  # noqa: F401 - registers what it has
    services,
)
from quotas import tokens as tokens_of
from quotas.audit import audit
from quotas.caps import BadCaps, caps_parse, caps_text
from quotas.invitations import can_be_invited, invite
from quotas.models import ApiToken, LedgerEntry, Membership, Project, Quota, User
from quotas.price_admin import PriceRowAdmin, StorageEntryAdmin
from quotas.readonly_admin import ReadOnlyAdmin
from quotas.request_admin import QuotaRequestAdmin, QuotaRequestEventAdmin
from quotas.unix_accounts import UnixNameRefused, unix_name_check

__all__ = [
    "PriceRowAdmin",
    "QuotaRequestAdmin",
    "QuotaRequestEventAdmin",
    "ReadOnlyAdmin",
    "StorageEntryAdmin",
]  # the modules register themselves

admin.site.unregister(Group)  # permissions are "staff" or not; groups would promise more than they do


class PersonCreationForm(UserCreationForm):  # type: ignore[misc]
    """Without a password the person gets an invitation by mail, where there is a mail server."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        if settings.EMAIL_HOST:
            for name in ("password1", "password2"):
                self.fields[name].required = False
            self.fields["password1"].help_text = _("Left empty, the person gets a link by mail to set one; it is good for a week.")

    def clean(self) -> Any:
        if settings.EMAIL_HOST and not (self.cleaned_data.get("password1") or self.cleaned_data.get("password2")):
            self.cleaned_data["usable_password"] = "false"  # noqa: S105 - Django's own word for an account without one
        return super().clean()

    class Meta:
        model = User
        fields = ("email",)


class PersonChangeForm(UserChangeForm):  # type: ignore[misc]
    class Meta:
        model = User
        fields = "__all__"

    def clean_unix_name(self) -> str:
        """The same rules as `manage.py users_map`, which alone lets several people share an account."""
        name: str = self.cleaned_data["unix_name"]
        if name and name != self.instance.unix_name:
            try:
                unix_name_check(self.instance, name)
            except UnixNameRefused as error:
                raise ValidationError(error.message) from error
        return name


class MembershipInline(TabularInline):  # type: ignore[misc]
    model = Membership
    extra = 0
    autocomplete_fields = ("user",)
    fields = ("user", "role")


@admin.register(User)
class PersonAdmin(DjangoUserAdmin, ModelAdmin):  # type: ignore[misc]
    form = PersonChangeForm
    add_form = PersonCreationForm
    change_password_form = AdminPasswordChangeForm
    ordering = ("email",)
    list_display = ("email", "first_name", "last_name", "is_staff", "is_active", "last_login", "date_joined")
    list_filter = ("is_staff", "is_active")
    search_fields = ("email", "first_name", "last_name", "unix_name")
    readonly_fields = ("last_login", "date_joined")
    filter_horizontal = ()
    fieldsets = (
        (None, {"fields": ("email", "password")}),
        (_("Person"), {"fields": ("first_name", "last_name", "language", "zone", "unix_name")}),
        (_("May"), {"fields": ("is_active", "is_staff", "is_superuser")}),
        (_("Dates"), {"fields": ("last_login", "date_joined")}),
    )
    add_fieldsets = ((None, {"classes": ("wide",), "fields": ("email", "password1", "password2")}),)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # jobs and charges keep their owner: switch a person off with "active"

    def save_model(self, request: HttpRequest, obj: User, form: ModelForm[User], change: bool) -> None:
        obj.email = obj.email.lower()
        if change and "unix_name" in form.changed_data:
            obj.unix_uid = None  # of an account that was made up under another name
            audit(request.user, "user.unix_name", f"user {obj.email}", {"unix_name": obj.unix_name, "how": "administration"})
        super().save_model(request, obj, form, change)
        if change and "is_active" in form.changed_data:
            audit(request.user, "user.switched_on" if obj.is_active else "user.switched_off", f"user {obj.email}")
        if not change:
            audit(request.user, "user.created", f"user {obj.email}", {"is_staff": obj.is_staff})
        services.user_provision(user=obj)
        services.address_confirm(user=obj)
        if not change and can_be_invited(obj):
            invite(user=obj, by=request.user)
            messages.info(request, _("A link to set a password was sent to %(email)s.") % {"email": obj.email})

    actions = ("people_invite",)

    @admin.action(description=_("Send a link to set the first password"))
    def people_invite(self, request: HttpRequest, queryset: QuerySet[User]) -> None:
        invited = [user for user in queryset if can_be_invited(user)]
        for user in invited:
            invite(user=user, by=request.user)
        text = ngettext("%(n)d link was sent.", "%(n)d links were sent.", len(invited)) % {"n": len(invited)}
        if len(invited) < len(queryset):
            text += " " + _("Who has a password, has signed in or is switched off gets none; without a mail server nobody does.")
        messages.info(request, text)


@admin.register(Project)
class ProjectAdmin(ModelAdmin):  # type: ignore[misc]
    list_display = ("name", "title", "personal_of", "is_active", "created_at")
    list_filter = ("is_active",)
    list_select_related = ("personal_of",)
    search_fields = ("name", "title")
    readonly_fields = ("personal_of", "created_at")
    inlines = (MembershipInline,)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # jobs and charges keep their project: switch it off with "active"


class CapsField(CharField):
    """``a100:2, h100:1`` as text, a dictionary in the row."""

    widget = UnfoldAdminTextInputWidget

    def prepare_value(self, value: Any) -> Any:
        return caps_text(value) if isinstance(value, dict) else value

    def to_python(self, value: Any) -> dict[str, int]:  # type: ignore[override]
        try:
            return caps_parse(value or "")
        except BadCaps as error:
            text = _("%(part)s is no limit by card model; write them as a100:2, h100:1.")
            raise ValidationError(text, params={"part": error.part or ":"}) from error

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return bool(caps_parse(data or "") != (initial or {}))
        except BadCaps:
            return True


class QuotaForm(ModelForm):  # type: ignore[type-arg]
    model_caps = CapsField(
        label=_("Cards of a model held at once"),
        required=False,
        help_text=_("Such as a100:2, h100:1. Models without an entry have no limit of their own."),
    )

    class Meta:
        model = Quota
        fields = ("user", "project", "gpu_hours", "max_active_jobs", "max_cards", "max_storage_mib", "model_caps")


@admin.register(Quota)
class QuotaAdmin(ModelAdmin):  # type: ignore[misc]
    form = QuotaForm
    list_display = (
        "__str__",
        "gpu_hours",
        "granted",
        "used_hours",
        "max_active_jobs",
        "active_jobs",
        "max_cards",
        "held_cards",
        "max_storage_mib",
        "models",
    )
    list_select_related = ("user", "project")
    search_fields = ("user__email", "project__name")
    autocomplete_fields = ("user", "project")
    readonly_fields = ("granted", "period_start", "used_hours", "active_jobs", "held_cards", "updated_at")

    @admin.display(description=_("granted on top"))
    def granted(self, quota: Quota) -> str:
        parts = [(quota.extra_gpu_hours, _("GPU-hours")), (quota.extra_cards, _("cards")), (quota.extra_active_jobs, _("active jobs"))]
        said = [f"+{n} {name}" for n, name in parts if n]
        return ", ".join([*said, *(f"+{n} {model}" for model, n in sorted(quota.extra_model_cards.items()))]) or "–"

    @admin.display(description=_("cards by model"))
    def models(self, quota: Quota) -> str:
        return caps_text(quota.model_caps) or "–"

    @admin.display(description=_("GPU-hours used"))
    def used_hours(self, quota: Quota) -> str:
        return f"{quota.spent_gpu_s / 3600:,.1f}"

    def get_readonly_fields(self, request: HttpRequest, obj: Quota | None = None) -> tuple[str, ...]:
        return (*self.readonly_fields, "user", "project") if obj is not None else self.readonly_fields

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Quota, form: ModelForm[Quota], change: bool) -> None:
        # Only what was edited: the counters may have moved since the form was loaded.
        if change:
            fields = [*form.changed_data, "updated_at"]
            if "gpu_hours" in form.changed_data:
                obj.told_pct, fields = 0, [*fields, "told_pct"]  # of another limit nobody was told yet
            obj.save(update_fields=fields)
            changes = {name: [form.initial.get(name), form.cleaned_data[name]] for name in form.changed_data}
            audit(request.user, "quota.changed", f"quota {services.owner_of(obj)}", changes)
        else:
            super().save_model(request, obj, form, change)


@admin.register(ApiToken)
class ApiTokenAdmin(ReadOnlyAdmin):
    list_display = ("name", "user", "prefix", "created_at", "expires_at", "last_used_at", "revoked_at")
    list_select_related = ("user",)
    search_fields = ("name", "user__email", "prefix")
    actions = ("revoke",)
    exclude = ("token_sha256",)

    @admin.action(description=_("Revoke the chosen tokens"))
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiToken]) -> None:
        tokens = list(queryset.filter(revoked_at__isnull=True))
        for token in tokens:
            tokens_of.token_revoke(token=token, by=request.user)
        text = ngettext("%(count)d token is revoked.", "%(count)d tokens are revoked.", len(tokens)) % {"count": len(tokens)}
        self.message_user(request, text, messages.SUCCESS)


@admin.register(LedgerEntry)
class LedgerEntryAdmin(ReadOnlyAdmin):
    list_display = ("slice_id", "job_id", "user", "project", "gpu_model", "share", "seconds", "gpu_seconds", "ended_at")
    list_select_related = ("user", "project")
    list_filter = ("project",)
    search_fields = ("job_id", "user__email", "project__name")
    date_hierarchy = "ended_at"
