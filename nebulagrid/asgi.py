"""The door of the web process: HTTP is Django's, WebSockets go to the nodes room after a check of their origin."""

from __future__ import annotations

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "nebulagrid.settings")
http = get_asgi_application()  # loads the apps; what follows may import models

from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from channels.security.websocket import AllowedHostsOriginValidator  # noqa: E402

from nodes import consumers  # noqa: E402

application = ProtocolTypeRouter({"http": http, "websocket": AllowedHostsOriginValidator(URLRouter(consumers.websocket_urlpatterns))})
