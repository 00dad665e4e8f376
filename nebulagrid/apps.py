from django.apps import AppConfig


class NebulagridConfig(AppConfig):
    name = "nebulagrid"

    def ready(self) -> None:
        # The web process sends nudges too: shared tasks must find our broker there, not Celery's default.
        from nebulagrid import celery, checks  # noqa: F401
