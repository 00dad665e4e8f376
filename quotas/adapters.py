"""How allauth behaves here: accounts are made by an admin, and an address is what our own proxies say it is."""

from __future__ import annotations

from allauth.account.adapter import DefaultAccountAdapter
from django.http import HttpRequest

from quotas.throttles import client_address


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]
    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """Nobody signs up alone: an admin makes the account, with its project and quota."""
        return False

    def get_client_ip(self, request: HttpRequest) -> str:
        return client_address(request)
