"""People, projects and limits in the admin. Counters, charges and secrets are shown, never edited: services own them."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext
from unfold.admin import ModelAdmin, TabularInline
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from quotas import services
from quotas.audit import audit
from quotas.models import ApiToken, LedgerEntry, Membership, Project, Quota, User

admin.site.unregister(Group)  # permissions are "staff" or not; groups would promise more than they do


class ReadOnlyAdmin(ModelAdmin):  # type: ignore[misc]
    """For staff to look at: what services or the database's own rules write."""

    list_per_page = 50
    show_full_result_count = False

    def has_module_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.is_active and request.user.is_staff)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.is_active and request.user.is_staff)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class PersonCreationForm(UserCreationForm):  # type: ignore[misc]
    class Meta:
        model = User
        fields = ("email",)


class PersonChangeForm(UserChangeForm):  # type: ignore[misc]
    class Meta:
        model = User
        fields = "__all__"


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
        super().save_model(request, obj, form, change)
        services.user_provision(user=obj)


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


@admin.register(Quota)
class QuotaAdmin(ModelAdmin):  # type: ignore[misc]
    list_display = ("__str__", "gpu_hours", "used_hours", "max_active_jobs", "active_jobs", "max_cards", "held_cards", "period_start")
    list_select_related = ("user", "project")
    search_fields = ("user__email", "project__name")
    autocomplete_fields = ("user", "project")
    readonly_fields = ("period_start", "used_gpu_s", "active_jobs", "held_cards", "updated_at")

    @admin.display(description=_("GPU-hours used"))
    def used_hours(self, quota: Quota) -> str:
        return f"{quota.used_gpu_s / 3600:,.1f}"

    def get_readonly_fields(self, request: HttpRequest, obj: Quota | None = None) -> tuple[str, ...]:
        return (*self.readonly_fields, "user", "project") if obj is not None else self.readonly_fields

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Quota, form: ModelForm[Quota], change: bool) -> None:
        # Only what was edited: the counters may have moved since the form was loaded.
        if change:
            obj.save(update_fields=[*form.changed_data, "updated_at"])
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
            services.token_revoke(token=token, by=request.user)
        text = ngettext("%(count)d token is revoked.", "%(count)d tokens are revoked.", len(tokens)) % {"count": len(tokens)}
        self.message_user(request, text, messages.SUCCESS)


@admin.register(LedgerEntry)
class LedgerEntryAdmin(ReadOnlyAdmin):
    list_display = ("slice_id", "job_id", "user", "project", "gpu_model", "share", "seconds", "gpu_seconds", "ended_at")
    list_select_related = ("user", "project")
    list_filter = ("project",)
    search_fields = ("job_id", "user__email", "project__name")
    date_hierarchy = "ended_at"
