"""The door of the web process: HTTP is Django's, WebSockets are the nodes room's.

Origin and credentials are checked in nodes/consumers.py, per door: a browser's cookie needs our own origin, an agent and
the command line bring a header that no foreign page can set. What that room must not know, it is given here.
"""

from __future__ import annotations

import os
import sys

import django
from django.conf import settings

# The event loop asks for the interpreter several times a request, and waits for so long each time while a view computes.
sys.setswitchinterval(0.0005)

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "nebulagrid.settings")
django.setup(set_prefix=False)  # loads the apps; what follows imports models

from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402

from jobs import ticker  # noqa: E402
from nebulagrid.gate import may_watch  # noqa: E402
from nebulagrid.handler import PooledHandler  # noqa: E402
from nebulagrid.headers import SecureAnswers  # noqa: E402
from nodes import consumers  # noqa: E402
from quotas.tokens import token_authenticate  # noqa: E402

# The nodes room knows neither jobs nor people: without these two nobody watches anything there and no token opens it.
consumers.configure(user_for_token=token_authenticate, may_watch=may_watch)
# The consumers check the origin themselves: a browser's must be ours, an agent and a client with a token have none.
routed = ProtocolTypeRouter({"http": PooledHandler(), "websocket": URLRouter(consumers.websocket_urlpatterns)})
application = SecureAnswers(routed)

if not settings.TESTING:  # there a thread would meet databases that come and go
    ticker.start()
