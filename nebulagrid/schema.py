"""What the OpenAPI document says beyond the views: how to sign in, and the one error shape."""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension

ERROR = {
    "type": "object",
    "description": "Every error has this shape.",
    "required": ["code", "message", "fields"],
    "properties": {
        "code": {"type": "string", "description": "For programs; stable.", "example": "never_fits"},
        "message": {
            "type": "string",
            "description": "One clear sentence in the language of Accept-Language.",
            "example": "No GPU can ever hold this: 96.0 GiB are asked on one GPU, the largest has 24.0 GiB (node03 gpu0).",
        },
        "fields": {"type": "object", "additionalProperties": True, "description": "What is wrong where, or the numbers of the message."},
    },
}


class TokenScheme(OpenApiAuthenticationExtension):
    target_class = "quotas.auth.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer", "description": "A personal token, `ngt_…`, from POST /api/v1/token."}


class SessionScheme(OpenApiAuthenticationExtension):
    target_class = "quotas.auth.SessionAuthentication"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "apiKey", "in": "cookie", "name": "sessionid", "description": "A browser's session; writing needs X-CSRFToken."}


def errors_everywhere(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Postprocessing hook: each operation answers ``Error`` for whatever is not a success."""
    result.setdefault("components", {}).setdefault("schemas", {})["Error"] = ERROR
    answer = {
        "description": "An error: 400, 401, 403, 404, 405, 409, 413, 415, 429 (with Retry-After) or 503.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    for methods in result.get("paths", {}).values():
        for operation in methods.values():
            if isinstance(operation, dict) and "responses" in operation:
                operation["responses"]["default"] = answer
    return result
