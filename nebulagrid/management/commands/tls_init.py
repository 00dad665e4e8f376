"""``manage.py tls_init``: an own CA and a server certificate, for a site that has no certificate of its own."""

from __future__ import annotations

import shlex
import socket
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from agent.config import file_write_private
from nebulagrid.tls import TlsError, TlsFiles, ca_make, ca_sha256, names_parse, server_make


class Command(BaseCommand):
    help = "Make an own CA and a server certificate in the data folder, and the settings to use them (HTTPS for other machines)."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--host", action="append", default=[], metavar="NAME", help="a name or address that machines reach this one by; repeat it"
        )
        parser.add_argument(
            "--new-ca", action="store_true", help="replace the CA too: every machine must then be told the new one (install.sh again)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        hosts = list(options["host"]) or [socket.getfqdn()]
        files = TlsFiles(folder=settings.DATA_DIR / "tls")
        now = timezone.now()
        try:
            names_parse(hosts)
            if options["new_ca"] or not files.ca.exists():
                ca_make(files, now=now)
                self.stdout.write(f"made the authority {files.ca}")
            # Loopback too: this machine's own agent and command line use the same certificate.
            server_make(files, hosts=[*hosts, "localhost", "127.0.0.1", "::1"], now=now)
            digest = ca_sha256(files.ca)
        except (TlsError, OSError) as error:
            raise CommandError(str(error), returncode=2) from error
        host = f"[{hosts[0]}]" if ":" in hosts[0] else hosts[0]
        values = {
            "NEBULA_TLS_CERT": str(files.cert),
            "NEBULA_TLS_KEY": str(files.key),
            "NEBULA_TLS_CA": str(files.ca),
            "NEBULA_BIND": "0.0.0.0",  # noqa: S104 - other machines shall reach it, and TLS is on
            "NEBULA_BASE_URL": f"https://{host}:{settings.PORT}",
            "NEBULA_ALLOWED_HOSTS": ",".join(dict.fromkeys([*hosts, "localhost", "127.0.0.1", "[::1]"])),
        }
        path = files.folder / "env"
        file_write_private(path, "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items()))
        self.stdout.write(f"made the certificate {files.cert} for {', '.join(hosts)}")
        self.stdout.write(f"CA SHA-256: {digest}")
        self.stdout.write(f"settings in {path} (for systemd: EnvironmentFile=); in a shell:")
        self.stdout.write(f"  set -a; . {shlex.quote(str(path))}; set +a")
        self.stdout.write("then start the control plane again, and add machines with: nebula-ctl node add NAME")
