"""Projects and their members over REST. Who may is in nebulagrid/access.py: members look, leads and staff change."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, QuerySet
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework import generics, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from quotas import projects
from quotas.models import ApiToken, Membership, Project, User
from quotas.selectors import projects_visible_to
from quotas.serializers import ApiTokenSerializer, InputSerializer, StrictBoolean, StrictChar
from quotas.tokens import token_revoke, tokens_live

MEMBERS_MOST = 1000
_NAME = r"^[a-z0-9][a-z0-9_-]{0,59}$"
_EXAMPLE = {
    "name": "vision",
    "title": "Vision group",
    "is_personal": False,
    "is_active": True,
    "created_at": "2026-03-02T08:00:00Z",
    "role": "lead",
    "members_count": 1,
    "members": [{"id": 7, "email": "lin@lab.example", "name": "Lin", "role": "lead", "is_active": True, "since": "2026-03-02T08:00:00Z"}],
}


class MemberSchema(serializers.Serializer[Any]):
    id = serializers.IntegerField(help_text="The user's.")
    email = serializers.CharField()
    name = serializers.CharField()
    role = serializers.ChoiceField(choices=Membership.Role.values)
    is_active = serializers.BooleanField(help_text="false = the account is switched off.")
    since = serializers.DateTimeField()


class ProjectRowSchema(serializers.Serializer[Any]):
    name = serializers.CharField()
    title = serializers.CharField()
    is_personal = serializers.BooleanField()
    is_active = serializers.BooleanField()
    created_at = serializers.DateTimeField()
    role = serializers.CharField(allow_null=True, help_text="Mine; null = none (staff).")
    members_count = serializers.IntegerField()


class ProjectSchema(ProjectRowSchema):
    members = MemberSchema(many=True)


class ProjectNew(InputSerializer):
    name = serializers.RegexField(_NAME, help_text="Lower-case letters, digits, - and _; it does not change afterwards.")
    title = StrictChar(max_length=120, required=False, default="", allow_blank=True)
    lead = StrictChar(max_length=254, required=False, help_text="The first lead's e-mail address; default: who makes it.")


class ProjectPatch(InputSerializer):
    title = StrictChar(max_length=120, required=False, allow_blank=True)
    is_active = StrictBoolean(required=False, help_text="false = nothing new is submitted under it.")


class MemberNew(InputSerializer):
    email = StrictChar(max_length=254)
    role = serializers.ChoiceField(choices=Membership.Role.values, default=Membership.Role.USER)


class MemberPatch(InputSerializer):
    role = serializers.ChoiceField(choices=Membership.Role.values)


def projects_with_role(user: User) -> QuerySet[Project]:
    # By id: a filter on the members would also narrow what is counted.
    found = Project.objects.filter(pk__in=projects_visible_to(user).values("pk"))
    return found.annotate(members_count=Count("memberships")).order_by("name")


def roles_of(user: User, found: list[Project]) -> dict[int, str]:
    """Project id → the user's role. One query."""
    return dict(Membership.objects.filter(user=user, project__in=found).values_list("project_id", "role"))


def project_row(project: Project, role: str | None, count: int) -> dict[str, Any]:
    return {
        "name": project.name,
        "title": project.title,
        "is_personal": project.personal_of_id is not None,
        "is_active": project.is_active,
        "created_at": project.created_at,
        "role": role,
        "members_count": count,
    }


def members_of(project: Project) -> list[Membership]:
    """Leads first, then users, then viewers; each by address. One query."""
    order = {role: place for place, role in enumerate(Membership.Role.values)}
    found = Membership.objects.filter(project=project).select_related("user").order_by("user__email")[:MEMBERS_MOST]
    return sorted(found, key=lambda member: order[member.role])


def project_json(project: Project, user: User) -> dict[str, Any]:
    members = members_of(project)
    mine = next((member.role for member in members if member.user_id == user.pk), None)
    return dict(
        ProjectSchema(
            {
                **project_row(project, mine, len(members)),
                "members": [
                    {
                        "id": member.user_id,
                        "email": member.user.email,
                        "name": member.user.get_full_name(),
                        "role": member.role,
                        "is_active": member.user.is_active,
                        "since": member.created_at,
                    }
                    for member in members
                ],
            }
        ).data
    )


def project_find(user: User, name: str) -> Project:
    return get_object_or_404(projects_visible_to(user), name=name)


class ProjectListView(generics.GenericAPIView[Project]):
    @extend_schema(
        operation_id="project_list", summary="Projects", description="Mine; staff see all.", responses=ProjectRowSchema(many=True)
    )
    def get(self, request: Request) -> Response:
        page = list(self.paginate_queryset(projects_with_role(request.user)) or [])
        roles = roles_of(request.user, page)
        rows = [project_row(project, roles.get(project.pk), project.members_count) for project in page]  # type: ignore[attr-defined]
        return self.get_paginated_response(ProjectRowSchema(rows, many=True).data)

    @extend_schema(
        operation_id="project_create",
        summary="Make a project",
        description="Staff only.",
        request=ProjectNew,
        responses={201: ProjectSchema},
        examples=[
            OpenApiExample("A group", value={"name": "vision", "title": "Vision group", "lead": "lin@lab.example"}, request_only=True),
            OpenApiExample("Made", value=_EXAMPLE, response_only=True),
        ],
    )
    def post(self, request: Request) -> Response:
        body = ProjectNew(data=request.data)
        body.is_valid(raise_exception=True)
        wanted = body.validated_data
        lead = projects.user_by_email(wanted["lead"]) if wanted.get("lead") else request.user
        project = projects.project_create(name=wanted["name"], title=wanted["title"], lead=lead, by=request.user)
        return Response(project_json(project, request.user), status=status.HTTP_201_CREATED)


class ProjectDetailView(APIView):
    @extend_schema(
        operation_id="project_get",
        summary="A project with its members",
        responses=ProjectSchema,
        examples=[OpenApiExample("A group", value=_EXAMPLE)],
    )
    def get(self, request: Request, name: str) -> Response:
        return Response(project_json(project_find(request.user, name), request.user))

    @extend_schema(
        operation_id="project_patch",
        summary="Change a project's title, or close it",
        description="Its leads and staff.",
        request=ProjectPatch,
        responses=ProjectSchema,
    )
    def patch(self, request: Request, name: str) -> Response:
        body = ProjectPatch(data=request.data)
        body.is_valid(raise_exception=True)
        project = projects.project_change(project=project_find(request.user, name), by=request.user, **body.validated_data)
        return Response(project_json(project, request.user))


class MemberListView(APIView):
    @extend_schema(
        operation_id="member_add",
        summary="Add a member",
        description="A lead changes members and stops jobs, a user submits, a viewer looks on. Its leads and staff.",
        request=MemberNew,
        responses={201: ProjectSchema},
        examples=[OpenApiExample("A viewer", value={"email": "chen@lab.example", "role": "viewer"}, request_only=True)],
    )
    def post(self, request: Request, name: str) -> Response:
        project = project_find(request.user, name)
        body = MemberNew(data=request.data)
        body.is_valid(raise_exception=True)
        user = projects.user_by_email(body.validated_data["email"])
        projects.member_add(project=project, user=user, role=body.validated_data["role"], by=request.user)
        return Response(project_json(project, request.user), status=status.HTTP_201_CREATED)


class MemberDetailView(APIView):
    def _member(self, request: Request, name: str, user: int) -> Membership:
        members = Membership.objects.select_related("project", "user").filter(project=project_find(request.user, name))
        return get_object_or_404(members, user_id=user)

    @extend_schema(
        operation_id="member_patch",
        summary="Change a member's role",
        description="A project keeps a lead: 409 `last_lead`. Its leads and staff.",
        request=MemberPatch,
        responses=ProjectSchema,
    )
    def patch(self, request: Request, name: str, user: int) -> Response:
        member = self._member(request, name, user)
        body = MemberPatch(data=request.data)
        body.is_valid(raise_exception=True)
        projects.member_change(member=member, role=body.validated_data["role"], by=request.user)
        return Response(project_json(member.project, request.user))

    @extend_schema(
        operation_id="member_remove",
        summary="Take a member out",
        description="Jobs go on, tokens made for the project end. Its leads and staff.",
        responses={204: None},
    )
    def delete(self, request: Request, name: str, user: int) -> Response:
        projects.member_remove(member=self._member(request, name, user), by=request.user)
        return Response(status=status.HTTP_204_NO_CONTENT)


class ProjectTokensView(generics.GenericAPIView[ApiToken]):
    @extend_schema(
        operation_id="project_tokens",
        summary="Tokens made for a project",
        description="All members'. Its leads and staff.",
        responses=ApiTokenSerializer(many=True),
    )
    def get(self, request: Request, name: str) -> Response:
        project = project_find(request.user, name)
        page = self.paginate_queryset(tokens_live(ApiToken.objects.filter(project=project)).select_related("project").order_by("-id"))
        return self.get_paginated_response(ApiTokenSerializer(page, many=True).data)


class ProjectTokenView(APIView):
    @extend_schema(
        operation_id="project_token_revoke",
        summary="Revoke a token made for a project",
        description="Whosever it is. Its leads and staff.",
        responses={204: None},
    )
    def delete(self, request: Request, name: str, id: int) -> Response:
        project = project_find(request.user, name)
        token = get_object_or_404(tokens_live(ApiToken.objects.filter(project=project)).select_related("user"), pk=id)
        token_revoke(token=token, by=request.user)
        return Response(status=status.HTTP_204_NO_CONTENT)
