"""What a new machine fetches before it has a credential: the installer, our CA, the wheels. Nothing here is secret."""

from __future__ import annotations

import hashlib
from typing import Any

from django.conf import settings
from django.http import FileResponse, HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.views.decorators.http import require_safe

from nebulagrid.dist import DistError, dist_folder, dist_index, install_script
from nebulagrid.tls import TlsError, ca_find, ca_sha256

TEXT = "text/plain; charset=utf-8"


def _missing(text: str, status: int = 404) -> HttpResponse:
    return HttpResponse(f"{text}\n", status=status, content_type=TEXT)


@require_safe
def install_sh(request: HttpRequest) -> HttpResponse:
    try:
        return HttpResponse(install_script(settings.BASE_DIR), content_type="text/x-shellscript; charset=utf-8")
    except DistError as error:
        return _missing(str(error), 503)


@require_safe
def ca_pem(request: HttpRequest) -> HttpResponse:
    """The authority of our certificate. Whoever fetches it must know its hash from elsewhere."""
    path = ca_find(tls_ca=settings.TLS_CA, tls_cert=settings.TLS_CERT)
    try:
        if path is None:
            return _missing("This control plane has no authority of its own; the system's authorities verify it.")
        return HttpResponse(path.read_bytes(), content_type="application/x-pem-file")
    except OSError as error:
        return _missing(f"The CA file can't be read: {error.strerror}.", 503)


@require_safe
def dist(request: HttpRequest, name: str = "") -> HttpResponseBase:
    """The list of wheels with their SHA-256, or one of them."""
    try:
        folder = dist_folder(settings.BASE_DIR, settings.DATA_DIR / "dist")
    except DistError as error:
        return _missing(str(error), 503)
    if not name:
        return HttpResponse(dist_index(folder), content_type=TEXT)
    if name not in {path.name for path in folder.glob("*.whl")}:
        return _missing(f"There is no file {name[:200]} here; the list is at /dist/.")
    return FileResponse((folder / name).open("rb"), content_type="application/octet-stream")


@require_safe
def install_json(request: HttpRequest) -> JsonResponse:
    """What `nebula-ctl node add` needs to write the line for a new machine: our address, the hash of our CA (None = a
    public one verifies us), the hash of the installer. Its reader has verified us already."""
    path = ca_find(tls_ca=settings.TLS_CA, tls_cert=settings.TLS_CERT)
    facts: dict[str, Any] = {"endpoint": settings.BASE_URL, "ca_sha256": None, "install_sha256": None}
    try:
        facts["install_sha256"] = hashlib.sha256(install_script(settings.BASE_DIR)).hexdigest()
        facts["ca_sha256"] = ca_sha256(path) if path is not None else None
    except (DistError, TlsError) as error:
        return JsonResponse({"code": "unavailable", "message": str(error), "fields": {}}, status=503)
    return JsonResponse(facts)
