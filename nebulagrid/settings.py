"""One settings file; everything that differs between installations comes from NEBULA_* in the environment.

``NEBULA_X_FILE`` names a file that holds the value of ``NEBULA_X`` (for secrets). docs/settings.md lists them all; a
test keeps that list true.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.core.exceptions import ImproperlyConfigured
from django.templatetags.static import static
from django.utils.translation import gettext_lazy as _

from nebulagrid import signin
from nebulagrid.embedded import EmbeddedError, redis_url, socket_folder
from nebulagrid.limits import limits_from
from nebulagrid.secretfile import secret_provide
from nebulagrid.statics import cache_headers

BASE_DIR = Path(__file__).resolve().parent.parent


def env(name: str, default: str = "") -> str:
    """``NEBULA_<name>`` or the content of the file that ``NEBULA_<name>_FILE`` names."""
    path = os.environ.get(f"NEBULA_{name}_FILE")
    if path:
        try:
            return Path(path).read_text().strip()
        except OSError as error:
            raise ImproperlyConfigured(f"NEBULA_{name}_FILE names {path}, which can't be read: {error.strerror}.") from error
    return os.environ.get(f"NEBULA_{name}", default)


def env_int(name: str, default: int) -> int:
    text = env(name, str(default))
    try:
        return int(text)
    except ValueError as error:
        raise ImproperlyConfigured(f"NEBULA_{name} is {text!r}; expected a whole number such as {default}.") from error


def env_float(name: str, default: float) -> float:
    text = env(name, f"{default:g}")
    try:
        return float(text)
    except ValueError as error:
        raise ImproperlyConfigured(f"NEBULA_{name} is {text!r}; expected a number such as {default:g}.") from error


def env_bool(name: str, default: bool) -> bool:
    text = env(name, "1" if default else "0").lower()
    if text not in {"1", "0", "true", "false", "yes", "no"}:
        raise ImproperlyConfigured(f"NEBULA_{name} is {text!r}; expected 1 or 0.")
    return text in {"1", "true", "yes"}


def env_list(name: str, default: str = "") -> list[str]:
    return [part.strip() for part in env(name, default).split(",") if part.strip()]


TESTING = "pytest" in sys.modules


def _data_dir() -> Path:
    """NEBULA_DATA, else ./var. Tests get a folder of their own, and never an installation's."""
    if TESTING:
        folder = tempfile.mkdtemp(prefix="nebula-test-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return Path(folder).resolve()
    return Path(env("DATA", str(BASE_DIR / "var"))).resolve()


DATA_DIR = _data_dir()
RUN_DIR = DATA_DIR / "run"
LOG_DIR = DATA_DIR / "logs"  # jobs' output
ARTIFACT_DIR = DATA_DIR / "artifacts"
PORT = env_int("PORT", 8000)
BIND = env("BIND", "127.0.0.1")  # `manage.py up` refuses another one without TLS (D35)
TLS_CERT = env("TLS_CERT")
TLS_KEY = env("TLS_KEY")
TLS_CA = env("TLS_CA")  # the authority of our certificate, where the system's don't know it; served at /ca.pem


def _own_secret(value: str, file: str) -> str:
    """A secret of this installation: what the environment gives, else a file made at first use (mode 0600)."""
    return value or secret_provide(DATA_DIR / file)


SECRET_KEY = _own_secret(env("SECRET_KEY"), "secret-key")
DEBUG = env_bool("DEBUG", False)
ALLOWED_HOSTS = env_list("ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]")
CSRF_TRUSTED_ORIGINS = env_list("CSRF_TRUSTED_ORIGINS")
BASE_URL = env("BASE_URL", f"{'https' if TLS_CERT else 'http'}://127.0.0.1:{PORT}").rstrip("/")
if (_own_name := urlsplit(BASE_URL).hostname) and not {_own_name, f"[{_own_name}]"} & set(ALLOWED_HOSTS):
    ALLOWED_HOSTS.append(f"[{_own_name}]" if ":" in _own_name else _own_name)  # what we call ourselves is no foreign name

INSTALLED_APPS = [
    "unfold",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "servestatic.runserver_nostatic",
    "django.contrib.staticfiles",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.usersessions",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_filters",
    "django_htmx",
    "channels",
    "quotas",
    "nodes",
    "jobs",
    "nebulagrid",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "nebulagrid.middleware.security_headers",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "quotas.audit.request_known",
    "nebulagrid.middleware.user_language",
    "nebulagrid.middleware.user_zone",
    "nebulagrid.gate.Gate",
    "nebulagrid.middleware.SeenText",
]

ROOT_URLCONF = "nebulagrid.urls"
ASGI_APPLICATION = "nebulagrid.asgi.application"
TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "jobs.context.shell",
            ],
        },
    }
]


# Threads of the web process, by whose requests they serve (nebulagrid/lanes.py).
WEB_THREADS = env_int("WEB_THREADS", 4)
WEB_AGENT_THREADS = env_int("WEB_AGENT_THREADS", 3)
WEB_OUTPUT_THREADS = env_int("WEB_OUTPUT_THREADS", 2)
for _name, _threads in (("THREADS", WEB_THREADS), ("AGENT_THREADS", WEB_AGENT_THREADS), ("OUTPUT_THREADS", WEB_OUTPUT_THREADS)):
    if not 1 <= _threads <= 64:
        raise ImproperlyConfigured(f"NEBULA_WEB_{_name} is {_threads}; expected 1 to 64.")
# Behind a proxy every connection comes from its address.
WEB_LIMITS = limits_from(env_int, is_proxied=env_int("TRUSTED_PROXIES", 0) > 0)


def database_from_url(url: str) -> dict[str, Any]:
    """``postgres://user:password@host:port/name?option=…`` or ``sqlite:///path``; empty = SQLite in the data folder."""
    if not url:
        url = f"sqlite:///{DATA_DIR / 'nebula.sqlite3'}"
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return {
            "ENGINE": "nebulagrid.sqlite3",
            "NAME": unquote(parts.path[1:] if parts.path.startswith("//") else parts.path) or str(DATA_DIR / "nebula.sqlite3"),
            # Without these, two thirds of concurrent writes failed with "database is locked".
            "OPTIONS": {
                # A web thread that waits for longer than its caller does only keeps others waiting: who comes again is served.
                "timeout": 8 if env("ROLE") == "web" else 20,
                "transaction_mode": "IMMEDIATE",
                "init_command": "PRAGMA journal_mode=WAL;PRAGMA synchronous=NORMAL;PRAGMA mmap_size=134217728;PRAGMA cache_size=-20000;",
            },
        }
    if parts.scheme in {"postgres", "postgresql"}:
        options: dict[str, Any] = dict(parse_qsl(parts.query))
        # For the processes that stay. In a short command the pool's threads may still work when Python ends, which aborts it.
        if not TESTING and env("ROLE") in {"web", "worker"}:
            # Each thread of the web process may hold a connection, and so may the sockets and the ticker.
            threads = WEB_THREADS + WEB_AGENT_THREADS + WEB_OUTPUT_THREADS + 1 if env("ROLE") == "web" else 4
            options["pool"] = {"min_size": 1, "max_size": threads + 4}
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": unquote(parts.path.lstrip("/")),
            "USER": unquote(parts.username or ""),
            "PASSWORD": unquote(parts.password or ""),
            "HOST": parts.hostname or options.pop("host", ""),
            "PORT": str(parts.port or ""),
            "OPTIONS": options,
        }
    raise ImproperlyConfigured("NEBULA_DATABASE_URL must begin with postgres:// or sqlite://.")


DATABASES = {"default": database_from_url(env("DATABASE_URL"))}
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    # A file, as in production: an in-memory database has no WAL, and threads that share it meet other locks.
    DATABASES["default"]["TEST"] = {"NAME": str(DATA_DIR / "test.sqlite3")}
# Web and worker have a few threads that stay, each with its connection; on PostgreSQL the pool keeps them instead.
if env("ROLE") in {"web", "worker"} and DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    DATABASES["default"]["CONN_MAX_AGE"] = 600
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# --- Redis: hints only. Everything converges with it empty or away ------------------------------------------------
try:
    REDIS_URL = env("REDIS_URL") or redis_url(socket_folder(DATA_DIR) / "redis.sock", secret_provide(DATA_DIR / "redis-password"))
except EmbeddedError as error:
    raise ImproperlyConfigured(str(error)) from error


def redis_db(number: int, *, celery: bool = False) -> str:
    """The installation's Redis with a database number, in redis-py's or in Celery's spelling."""
    base = REDIS_URL.split("?")[0]
    if base.startswith("unix://"):
        path = base.removeprefix("unix://")
        return f"redis+socket://{path}?virtual_host={number}" if celery else f"unix://{path}?db={number}"
    return f"{base.rstrip('/')}/{number}" if base.count("/") == 2 else f"{base.rsplit('/', 1)[0]}/{number}"


CHANNEL_LAYERS: dict[str, Any] = {
    "default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": {"hosts": [redis_db(2)]}},
}
if TESTING:
    CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
LIVE_REDIS_URL = redis_db(1)
CELERY_BROKER_URL = redis_db(0, celery=True)
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None  # a worker waits for Redis for as long as it takes
# With the defaults, sending a nudge while Redis is away took 6 s; so it fails within 3 ms.
CELERY_BROKER_TRANSPORT_OPTIONS: dict[str, Any] = {
    "socket_connect_timeout": 2,
    "socket_timeout": 30,
    "visibility_timeout": 3600,
    "max_retries": 1,
    "interval_start": 0,
    "interval_step": 0,
    "interval_max": 0,
}
# A nudge that cannot be sent now is not worth waiting for: the sweep follows within 3 s.
CELERY_TASK_PUBLISH_RETRY = False
CELERY_BROKER_POOL_LIMIT = 8
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_STORE_EAGER_RESULT = False
CELERY_TASK_TIME_LIMIT = 60
CELERY_TIMEZONE = "UTC"
# In memory: a schedule file torn by kill -9 would keep beat from starting, and nothing here needs one.
CELERY_BEAT_SCHEDULER = "celery.beat:Scheduler"
CELERY_BEAT_MAX_LOOP_INTERVAL = 1
CELERY_WORKER_SEND_TASK_EVENTS = False
CELERY_WORKER_ENABLE_REMOTE_CONTROL = False
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BEAT_SCHEDULE: dict[str, Any] = {
    # Nudges expire: a beat that was ahead of a slow worker leaves no backlog.
    "sweep": {"task": "jobs.tasks.schedule_sweep", "schedule": 3.0, "options": {"expires": 3}},
    "liveness": {"task": "nodes.tasks.liveness_check", "schedule": 1.0, "options": {"expires": 1}},
    "last-seen": {"task": "nodes.tasks.last_seen_flush", "schedule": 5.0, "options": {"expires": 5}},
    # Often enough that a late beat misses no step; the first of each step does the work.
    "samples": {"task": "nodes.tasks.samples_tick", "schedule": 5.0, "options": {"expires": 5}},
    "health": {"task": "jobs.tasks.health", "schedule": 5.0, "options": {"expires": 5}},
    "alerts": {"task": "jobs.tasks.alerts", "schedule": 5.0, "options": {"expires": 5}},
    "inspections": {"task": "nodes.tasks.inspections_due", "schedule": 300.0, "options": {"expires": 300}},
    "notices": {"task": "nodes.tasks.notices_send", "schedule": 5.0, "options": {"expires": 5}},
    "upkeep": {"task": "jobs.tasks.upkeep", "schedule": 30.0, "options": {"expires": 30}},
}

# --- The admin's look: ours, not the package's purple ---------------------------------------------------------
UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "NebulaGrid",
    "SITE_HEADER": "NebulaGrid",
    "SITE_ICON": lambda request: static("img/mark.svg"),
    "DASHBOARD_CALLBACK": "quotas.request_admin.front",
    "STYLES": [lambda request: static("css/admin.css")],
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": lambda request: static("img/mark.svg")}],
    "COLORS": {
        "primary": {
            "50": "#eef0ff", "100": "#e0e3ff", "200": "#c3c8fb", "300": "#a0acfb", "400": "#7f8bf0", "500": "#5b67e2",
            "600": "#4b4fd8", "700": "#3e3cc5", "800": "#34339f", "900": "#2c2e7d", "950": "#1b1c4b",
        },
    },
}  # fmt: skip

# --- People ---------------------------------------------------------------------------------------------------
AUTH_USER_MODEL = "quotas.User"
AUTHENTICATION_BACKENDS = ["allauth.account.auth_backends.AuthenticationBackend"]
# By a directory (LDAP) and through another sign-in (OIDC); nebulagrid/signin.py reads both and says what is wrong with them.
LDAP = signin.ldap_from(env)
if LDAP is not None:
    AUTHENTICATION_BACKENDS.append("quotas.ldap.LdapBackend")
OIDC = signin.oidc_from(env)
if OIDC is not None:
    INSTALLED_APPS += ["allauth.socialaccount", "allauth.socialaccount.providers.openid_connect"]
    SOCIALACCOUNT_PROVIDERS = {"openid_connect": signin.oidc_provider(OIDC)}
    SOCIALACCOUNT_ADAPTER = "quotas.social.SocialAdapter"
    SOCIALACCOUNT_ONLY = False
    SOCIALACCOUNT_AUTO_SIGNUP = True
    SOCIALACCOUNT_LOGIN_ON_GET = False
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
if TESTING:
    PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # the real one costs 0.2 s a sign-in
ACCOUNT_USER_MODEL_USERNAME_FIELD = None
ACCOUNT_LOGIN_METHODS = {"email"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "password1*", "password2*"]
# Empty = an admin makes accounts; open = everybody; else the domains of addresses that may.
SIGNUP = env_list("SIGNUP")
ACCOUNT_ADAPTER = "quotas.adapters.AccountAdapter"
USERSESSIONS_ADAPTER = "quotas.adapters.SessionsAdapter"
# Tries from one address are counted by quotas/throttles.py, those of one account by quotas/guesses.py, at all doors together.
ACCOUNT_RATE_LIMITS = {"login_failed": None}
# Links to set a new password: none is sent to addresses without an account, and who has one is signed in by it.
ACCOUNT_EMAIL_UNKNOWN_ACCOUNTS = False
ACCOUNT_EMAIL_SUBJECT_PREFIX = "[NebulaGrid] "
ACCOUNT_LOGIN_ON_PASSWORD_RESET = True
PASSWORD_RESET_TIMEOUT = 4 * 3600
LOGIN_REDIRECT_URL = "/"
LOGIN_URL = "account_login"
MFA_SUPPORTED_TYPES = ["totp", "recovery_codes"]
MFA_TOTP_ISSUER = "NebulaGrid"
# Without a mail server the sign-in page offers no link by mail, and what is mailed all the same is in our own output.
EMAIL_HOST = env("EMAIL_HOST")
ACCOUNT_EMAIL_VERIFICATION = signin.verification_from(env, has_mail=bool(EMAIL_HOST), has_signup=bool(SIGNUP))
EMAIL_PORT = env_int("EMAIL_PORT", 587)
EMAIL_HOST_USER = env("EMAIL_USER")
EMAIL_HOST_PASSWORD = env("EMAIL_PASSWORD")
EMAIL_USE_TLS = env_bool("EMAIL_TLS", True)
EMAIL_TIMEOUT = 10  # the sender of notices has one of the worker's few threads
DEFAULT_FROM_EMAIL = env("EMAIL_FROM", f"nebulagrid@{urlsplit(BASE_URL).hostname or 'localhost'}")
EMAIL_BACKEND = env("EMAIL_BACKEND", f"django.core.mail.backends.{'smtp' if EMAIL_HOST else 'console'}.EmailBackend")

# Who jobs run as on nodes with identity = "mapped", and who may run where people's jobs are not kept apart (jobs/admission.py).
UNIX_RANGE = signin.unix_range_from(env)
UNIX_PREFIX = signin.unix_prefix_from(env)
ALLOW_UNISOLATED = env_bool("ALLOW_UNISOLATED", False)
SECRETS_ON_SHARED_NODES = env_bool("SECRETS_ON_SHARED_NODES", False)
CONFIRM_INVENTORY = env_bool("CONFIRM_INVENTORY", False)
CREDENTIAL_DAYS = env_int("CREDENTIAL_DAYS", 30)  # 0 = never

# --- Words, time, files ---------------------------------------------------------------------------------------
LANGUAGE_CODE = "en"
LANGUAGES = [("en", _("English")), ("zh-hans", _("Simplified Chinese"))]
LOCALE_PATHS = [BASE_DIR / "nebulagrid" / "locale"]
USE_I18N = True
USE_TZ = True
TIME_ZONE = "UTC"  # what the database keeps
INSTALLATION_ZONE = env("ZONE", "UTC")  # where a month begins, for quotas; people may set their own for display
try:
    ZoneInfo(INSTALLATION_ZONE)
except (ZoneInfoNotFoundError, ValueError) as error:
    raise ImproperlyConfigured(f"NEBULA_ZONE is {INSTALLATION_ZONE!r}; expected a time zone such as Asia/Shanghai.") from error
# `up` copies the files at its start and names the copy here; without it they come straight from the packages.
STATIC_VERSION = env("STATIC_VERSION")
STATIC_URL = f"static/{STATIC_VERSION}/" if STATIC_VERSION else "static/"
STATIC_ROOT = Path(env("STATIC_ROOT", str(DATA_DIR / "static")))
SERVESTATIC_USE_FINDERS = not STATIC_VERSION
SERVESTATIC_STATIC_PREFIX = "/static/"
SERVESTATIC_ADD_HEADERS_FUNCTION = cache_headers
STATICFILES_DIRS = [BASE_DIR / "static"]
STATICFILES_FINDERS = [
    "django.contrib.staticfiles.finders.FileSystemFinder",
    "django.contrib.staticfiles.finders.AppDirectoriesFinder",
    "nebulagrid.finders.PlotlyFinder",
]
DATA_UPLOAD_MAX_MEMORY_SIZE = 5 * 1024 * 1024  # above the agents' own limits of 4 MiB, which are told in their words
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CONTENT_TYPE_NOSNIFF = True
# Where people come by HTTPS, a browser shall never try without. nebulagrid/headers.py puts it on each answer.
HSTS_S = env_int("HSTS_S", 31_536_000) if BASE_URL.startswith("https://") else 0
SECURE_HSTS_SECONDS = HSTS_S
CSRF_FAILURE_VIEW = "nebulagrid.api.csrf_failure"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = BASE_URL.startswith("https://")

# --- REST API -------------------------------------------------------------------------------------------------
REST_FRAMEWORK: dict[str, Any] = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["quotas.auth.TokenAuthentication", "quotas.auth.SessionAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["nebulagrid.gate.TableAllows"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["nebulagrid.wire.JSONParser"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "nebulagrid.wire.AlwaysJSON",
    "DEFAULT_PAGINATION_CLASS": "nebulagrid.wire.Pagination",
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "nebulagrid.api.exception_handler",
    "DEFAULT_METADATA_CLASS": None,  # OPTIONS is a 405 that names the methods; what they take, /api/v1/schema tells
    "DEFAULT_THROTTLE_CLASSES": ["quotas.throttles.AnonymousThrottle", "nebulagrid.writes.WriteThrottle"],
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
}
SPECTACULAR_SETTINGS: dict[str, Any] = {
    "TITLE": "NebulaGrid API",
    "DESCRIPTION": "Submit jobs, follow them, see the pool.",
    "VERSION": "1",
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["nebulagrid.gate.TableAllows"],
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "ENUM_NAME_OVERRIDES": {
        "JobStateEnum": "jobs.models.STATE_CHOICES",
        "NodeStateEnum": "nodes.models.NodeState",
        "GpuStateEnum": "nodes.models.GpuState",
        "CommandStateEnum": "nodes.models.COMMAND_STATES",
    },
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "nebulagrid.schema.errors_everywhere",
        "nebulagrid.examples.examples_fill",
    ],
}

# --- NebulaGrid's own; docs/settings.md explains each -----------------------------------------------------------
MAKES_FORECASTS = env("ROLE") == "worker"  # a thread beside the passes; elsewhere they would only be in the way
THROTTLE_ANONYMOUS = env("THROTTLE_ANONYMOUS", "5/60")  # burst / seconds to refill it, per address (D17)
THROTTLE_PASSWORD = env("THROTTLE_PASSWORD", "20/900")  # wrong ones per account, from devices and addresses that are not known
THROTTLE_PASSWORD_KNOWN = env("THROTTLE_PASSWORD_KNOWN", "10/300")  # from each that is
THROTTLE_SUBMIT = env("THROTTLE_SUBMIT", "300/15")  # 20 a second, burst 300, per user
THROTTLE_ESTIMATE = env("THROTTLE_ESTIMATE", "60/60")  # what-ifs, per user
THROTTLE_AGENT = env("THROTTLE_AGENT", "1000/10")  # per node
THROTTLE_WRITE = env("THROTTLE_WRITE", "240/60")  # what changes something but submits, per user
THROTTLE_WRITES_DAY = env("THROTTLE_WRITES_DAY", "20000/86400")  # the same in a day: each leaves rows
THROTTLE_TEXT = env("THROTTLE_TEXT", "131072/86400")  # KiB of commands and environments in a day, per user
TRUSTED_PROXIES = env_int("TRUSTED_PROXIES", 0)  # how many of our own proxies append to X-Forwarded-For
if TRUSTED_PROXIES > 0:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
METRICS_TOKEN = _own_secret(env("METRICS_TOKEN"), "metrics-token")
METRICS_ALLOW = env_list("METRICS_ALLOW")
WEBHOOK_ALLOW = env_list("WEBHOOK_ALLOW")
try:
    WEBHOOK_PORTS = [int(text) for text in env_list("WEBHOOK_PORTS", "443,8443")]
except ValueError as error:
    raise ImproperlyConfigured(f"NEBULA_WEBHOOK_PORTS is {env('WEBHOOK_PORTS')!r}; expected ports such as 443,8443.") from error
for _name, _networks in (("METRICS_ALLOW", METRICS_ALLOW), ("WEBHOOK_ALLOW", WEBHOOK_ALLOW)):
    for _network in _networks:
        try:
            ip_network(_network, strict=False)
        except ValueError as error:
            raise ImproperlyConfigured(f"NEBULA_{_name} has {_network!r}; expected addresses or networks such as 10.0.0.0/8.") from error
SYNC_INTERVAL_S = env_int("SYNC_INTERVAL_S", 5)
UNKNOWN_AFTER_S = env_int("UNKNOWN_AFTER_S", 15)
LEASE_S = env_int("LEASE_S", 600)
SAMPLE_EVERY_S = env_int("SAMPLE_EVERY_S", 30)  # D11
if not 5 <= SAMPLE_EVERY_S <= 60 or 60 % SAMPLE_EVERY_S:
    raise ImproperlyConfigured(f"NEBULA_SAMPLE_EVERY_S is {SAMPLE_EVERY_S}; expected 5, 6, 10, 12, 15, 20, 30 or 60: a part of a minute.")
SAMPLE_KEEP_HOURS = env_int("SAMPLE_KEEP_HOURS", 24)
SAMPLE_MINUTES_KEEP_DAYS = env_int("SAMPLE_MINUTES_KEEP_DAYS", 8)
SAMPLE_HOURS_KEEP_DAYS = env_int("SAMPLE_HOURS_KEEP_DAYS", 400)
for _name, _kept, _least in (
    ("SAMPLE_KEEP_HOURS", SAMPLE_KEEP_HOURS, 2),
    ("SAMPLE_MINUTES_KEEP_DAYS", SAMPLE_MINUTES_KEEP_DAYS, 1),
    ("SAMPLE_HOURS_KEEP_DAYS", SAMPLE_HOURS_KEEP_DAYS, 1),
):
    if _kept < _least:
        raise ImproperlyConfigured(f"NEBULA_{_name} is {_kept}; expected {_least} or more: the next level is made of what is kept.")
DISK_FLOOR_MIB = env_int("DISK_FLOOR_MIB", 256)  # stays free on the data folder's disks: submits and uploads are refused before
JOB_TEXT_MIB = env_int("JOB_TEXT_MIB", 16)  # commands and environments of one user's active jobs
LOG_CAP_MIB = env_int("LOG_CAP_MIB", 1024)
CORDON_AFTER_LAUNCHES = env_int("CORDON_AFTER_LAUNCHES", 3)  # spoilt in a row by the node's own fault; 0 = never
ARTIFACT_CAP_MIB = env_int("ARTIFACT_CAP_MIB", 1024)
ARTIFACTS_JOB_MIB = env_int("ARTIFACTS_JOB_MIB", 10_240)  # all files of one job; 0 = no limit
ARTIFACTS_JOB_FILES = env_int("ARTIFACTS_JOB_FILES", 10_000)
KEEP_ARTIFACTS_DAYS = env_int("KEEP_ARTIFACTS_DAYS", 0)  # after a job's end; 0 = for ever
KEEP_LOGS_DAYS = env_int("KEEP_LOGS_DAYS", 0)
KEEP_AUDIT_DAYS = env_int("KEEP_AUDIT_DAYS", 0)  # at least 30; 0 = for ever
MAX_GRACE_S = env_int("MAX_GRACE_S", 600)
OWNERLESS_HOURS = env_int("OWNERLESS_HOURS", 72)  # of a job whose owner is switched off, or that has run for LONG_JOB_DAYS
LONG_JOB_DAYS = env_int("LONG_JOB_DAYS", 30)  # 0 = however long
FAULT_GRACE_S = env_int("FAULT_GRACE_S", 15)
STOP_GRACE_S = env_int("STOP_GRACE_S", 30)
# Jobs that hold cards and do nothing; 0 = nobody is watched (jobs/idle.py).
IDLE_AFTER_S = env_int("IDLE_AFTER_S", 0)
IDLE_GRACE_S = env_int("IDLE_GRACE_S", 600)
IDLE_QUEUES = env("IDLE_QUEUES")
IDLE_UTIL_PCT = env_int("IDLE_UTIL_PCT", 5)
IDLE_CPU_CORES = env_float("IDLE_CPU_CORES", 0.5)
if IDLE_AFTER_S and not 300 <= IDLE_AFTER_S <= 86_400:
    raise ImproperlyConfigured(f"NEBULA_IDLE_AFTER_S is {IDLE_AFTER_S}; expected 0 (off), or seconds from 300 to 86400.")
HOT_MOVE_C = env_int("HOT_MOVE_C", 0)  # 0 = off
HOT_MOVE_S = env_int("HOT_MOVE_S", 300)
if HOT_MOVE_C and not 60 <= HOT_MOVE_C <= 110:
    raise ImproperlyConfigured(f"NEBULA_HOT_MOVE_C is {HOT_MOVE_C}; expected 0 (off) or 60 to 110 °C.")
SHOW_CARD_USERS = env_bool("SHOW_CARD_USERS", False)  # to everybody who is signed in; staff always see them
ECC_UNCORRECTED = env("ECC_UNCORRECTED", "suspect")
if ECC_UNCORRECTED not in ("note", "suspect", "isolate"):
    raise ImproperlyConfigured(f"NEBULA_ECC_UNCORRECTED is {ECC_UNCORRECTED!r}; expected note, suspect or isolate.")
SLICE_EXCEEDED = env("SLICE_EXCEEDED", "stop")  # D25
if SLICE_EXCEEDED not in ("stop", "warn"):
    raise ImproperlyConfigured(f"NEBULA_SLICE_EXCEEDED is {SLICE_EXCEEDED!r}; expected stop or warn.")
SLICE_MARGIN_MIB = env_int("SLICE_MARGIN_MIB", 1024)
SLICE_GRACE_S = env_int("SLICE_GRACE_S", 60)
# The policy of the passes; jobs/policy.py makes it of these, `manage.py check` looks them over, docs/scheduling.md tells what each does.
POLICY_ORDER = env("POLICY_ORDER", "fair")
POLICY_STRATEGY = env("POLICY_STRATEGY", "default")
POLICY_QUEUES = env("POLICY_QUEUES")
POLICY_QOS = env("POLICY_QOS")
POLICY_HALF_LIFE_S = env_float("POLICY_HALF_LIFE_S", 604800)  # D4
POLICY_WEIGHT_PER_JOB = env_float("POLICY_WEIGHT_PER_JOB", 0.1)
POLICY_WEIGHT_PER_CARD_HOUR = env_float("POLICY_WEIGHT_PER_CARD_HOUR", 0.02)
POLICY_WEIGHT_POWER = env_float("POLICY_WEIGHT_POWER", 0.25)
POLICY_LOAD_POWER = env_float("POLICY_LOAD_POWER", 2)
POLICY_AGE_FOLD_S = env_float("POLICY_AGE_FOLD_S", 432000)
POLICY_SHORT_FLOOR_S = env_float("POLICY_SHORT_FLOOR_S", 60)
POLICY_BORROW_S = env_float("POLICY_BORROW_S", 7200)
POLICY_LIMIT_MAX_S = env_float("POLICY_LIMIT_MAX_S", 604800)  # D24
POLICY_TRUST = env_float("POLICY_TRUST", 3)
POLICY_TRUST_FLOOR_S = env_float("POLICY_TRUST_FLOOR_S", 600)
POLICY_PATIENCE_S = env_float("POLICY_PATIENCE_S", 604800)
POLICY_KEEPS_FOR_HEAD = env_bool("POLICY_KEEPS_FOR_HEAD", True)
POLICY_WHOLE_ABOVE = env_float("POLICY_WHOLE_ABOVE", 0.5)  # D14
POLICY_MIN_SLICE_MIB = env_int("POLICY_MIN_SLICE_MIB", 4096)
POLICY_MAX_SLICES = env_int("POLICY_MAX_SLICES", 4)
POLICY_FOREIGN_FLOOR_MIB = env_int("POLICY_FOREIGN_FLOOR_MIB", 512)  # D1
SECRETS_KEY = env_list("SECRETS_KEY")  # the first seals, all of them open; empty = the file secrets-key in the data folder
DEFAULT_GPU_HOURS = env_int("DEFAULT_GPU_HOURS", 2000)
DEFAULT_STORAGE_MIB = env_int("DEFAULT_STORAGE_MIB", 102_400)  # of files and output that a new user's jobs leave; 0 = no limit
DEFAULT_ACTIVE_JOBS = env_int("DEFAULT_ACTIVE_JOBS", 2000)  # of a new user at once; 0 = no limit
CURRENCY = env("CURRENCY", "USD")

LOG_FORMAT = env("LOG_FORMAT", "line")
if LOG_FORMAT not in ("line", "json"):
    raise ImproperlyConfigured(f"NEBULA_LOG_FORMAT is {LOG_FORMAT!r}; expected line or json.")
LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"},
        "json": {"()": "agent.jsonlog.JsonLines"},
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": LOG_FORMAT}},
    "root": {"handlers": ["stderr"], "level": env("LOG_LEVEL", "INFO")},
    # A stranger's 404s are not worth a line each; errors are.
    "loggers": {"django.request": {"level": "ERROR"}, "httpx": {"level": "WARNING"}},
}
