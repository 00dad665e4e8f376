"""Every address of the control plane."""

from __future__ import annotations

from allauth.account import views as account
from allauth.account.decorators import secure_admin_login
from django.conf import settings
from django.contrib import admin
from django.http import HttpResponseRedirect
from django.templatetags.static import static
from django.urls import include, path, re_path
from drf_spectacular.views import SpectacularJSONAPIView, SpectacularSwaggerSplitView

from jobs import metrics, overview
from nebulagrid import api, docs_views, install_views, schema  # noqa: F401 - schema registers how to sign in with the OpenAPI generator
from nodes.icons import icons_view
from quotas.invitations import invitation
from quotas.throttles import throttled_page

admin.autodiscover()
# One door for people: the admin has no sign-in of its own that could be tried without the throttle.
admin.site.login = secure_admin_login(admin.site.login)  # type: ignore[method-assign]

api_v1 = [
    path("", include("quotas.urls")),
    path("", include("nodes.urls")),
    path("", include("jobs.urls")),
    # The description of the API is no secret, and a page of documentation must not use up five calls a minute.
    path("schema", SpectacularJSONAPIView.as_view(throttle_classes=(), authentication_classes=()), name="api-schema"),
    path(
        "docs", SpectacularSwaggerSplitView.as_view(url_name="api-schema", throttle_classes=(), authentication_classes=()), name="api-docs"
    ),
]

urlpatterns = [
    path("", overview.overview, name="home"),
    path("overview/pieces/", overview.overview_pieces, name="overview-pieces"),
    path("cells/", overview.pool_cells, name="pool-cells"),
    path("cells/heat/", overview.pool_heat, name="pool-heat"),
    path("cells/users/", overview.pool_users, name="pool-users"),
    path("search/", docs_views.search, name="search"),
    path("docs/", docs_views.docs_index, name="docs"),
    path("docs/<slug:name>/", docs_views.docs_page, name="docs-page"),
    path("jobs/", include("jobs.page_urls")),
    path("audit/", include("quotas.audit_urls")),
    path("secrets/", include("quotas.secrets_urls")),
    path("alerts/", include("nodes.alert_urls")),
    path("notices/", include("quotas.notice_urls")),
    path("incidents/", include("nodes.incident_urls")),
    path("quota/", include("jobs.quota_urls")),
    path("usage/", include("jobs.usage_urls")),
    path("nodes/", include("jobs.pool_urls")),
    path("nodes/", include("nodes.page_urls")),
    # Browsers ask for it on answers that are no page of ours, such as JSON. The name of the picture has a hash: not known at import.
    path("favicon.ico", lambda request: HttpResponseRedirect(static("img/mark.svg")), name="favicon"),
    path("icons.svg", icons_view, name="icons"),
    path("healthz", api.healthz, name="healthz"),
    path("metrics", metrics.metrics, name="metrics"),
    path("install.sh", install_views.install_sh, name="install-sh"),
    path("install.json", install_views.install_json, name="install-json"),
    path("ca.pem", install_views.ca_pem, name="ca-pem"),
    path("dist/", install_views.dist, name="dist"),
    path("dist/<str:name>", install_views.dist, name="dist-file"),
    path("api/v1/", include(api_v1)),
    path("api/agent/v1/", include("jobs.agent_urls")),
    re_path(r"^api/", api.api_not_found),
    re_path(r"^v1/(?P<rest>.*)$", api.api_moved),
    path("accounts/login/", throttled_page(account.login), name="account_login"),
    path("accounts/password/reset/", throttled_page(account.password_reset), name="account_reset_password"),
    path("accounts/invitation/<str:token>/", invitation, name="invitation"),
    path("accounts/signup/", throttled_page(account.signup), name="account_signup"),
    path("accounts/", include("allauth.account.urls")),
    path("accounts/2fa/", include("allauth.mfa.urls")),
    path("accounts/sessions/", include("allauth.usersessions.urls")),
    path("", include("quotas.page_urls")),
    path("i18n/", include("django.conf.urls.i18n")),
    path("admin/", admin.site.urls),
]

if settings.OIDC is not None:
    urlpatterns += [
        path("accounts/sso/", include("allauth.socialaccount.urls")),
        path("accounts/sso/", include("allauth.socialaccount.providers.openid_connect.urls")),
    ]

handler400 = api.handler400
handler403 = api.handler403
handler404 = api.handler404
handler500 = api.handler500
