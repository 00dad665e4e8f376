"""What agents call; docs/agent.md, "How it talks"."""

from django.urls import path

from jobs import agent_api, artifact_api

app_name = "agent"
urlpatterns = [
    path("enroll", agent_api.enroll, name="enroll"),
    path("credential", agent_api.credential, name="credential"),
    path("sync", agent_api.sync, name="sync"),
    path("logs/<str:rank>", agent_api.logs_put, name="logs"),
    path("artifacts/<str:rank>/<str:name>", artifact_api.artifact_put, name="artifact"),
]
