"""How allauth behaves here: who may sign up, and an address is what our own proxies say it is."""

from __future__ import annotations

import logging
import smtplib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.usersessions.adapter import DefaultUserSessionsAdapter
from django import forms
from django.conf import settings
from django.core.mail import EmailMessage
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import translation
from django.utils.translation import gettext as _

from quotas.audit import audit
from quotas.guesses import TooManyGuesses, device_remember, guess_begin
from quotas.services import user_provision
from quotas.throttles import client_address, too_many_page

log = logging.getLogger(__name__)

#: One at a time: there are few, and none is waited for.
_mails = ThreadPoolExecutor(1, thread_name_prefix="account-mail")


def _mail_send(message: EmailMessage) -> None:
    try:
        message.send()
    except (smtplib.SMTPException, OSError) as error:
        log.error("a mail about an account could not be sent: %s", error)


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]
    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """By default nobody signs up alone: an admin makes the account. NEBULA_SIGNUP opens it to all, or to some domains."""
        return bool(settings.SIGNUP)

    def clean_email(self, email: str) -> str:
        email = str(super().clean_email(email)).lower()
        domain = email.rpartition("@")[2]
        if settings.SIGNUP and "open" not in settings.SIGNUP and domain not in {known.lower() for known in settings.SIGNUP}:
            text = _("Accounts here are for addresses at %(domains)s.") % {"domains": ", ".join(settings.SIGNUP)}
            raise forms.ValidationError(text)
        return email

    def add_message(self, request: HttpRequest, *args: Any, **more: Any) -> None:
        """In the language of the person: who has just signed in was asked in the browser's, and reads on in the own one."""
        wanted = getattr(request.user, "language", "") if settings.LANGUAGE_COOKIE_NAME not in request.COOKIES else ""
        with translation.override(wanted if wanted in dict(settings.LANGUAGES) else translation.get_language()):
            super().add_message(request, *args, **more)

    def save_user(self, request: HttpRequest, user: Any, form: Any, commit: bool = True) -> Any:
        user = super().save_user(request, user, form, commit=commit)
        if commit:
            user_provision(user=user)
        return user

    def authenticate(self, request: HttpRequest, **credentials: Any) -> Any:
        """Of the sign-in page and of the question for the password before something grave."""
        try:
            guess = guess_begin(request, str(credentials.get("email") or credentials.get("username") or ""))
        except TooManyGuesses as error:
            raise ImmediateHttpResponse(too_many_page(request, error.wait_s)) from error
        user = super().authenticate(request, **credentials)
        if user is not None:
            guess.succeeded()
        return user

    def post_login(self, request: HttpRequest, user: Any, **more: Any) -> HttpResponse:
        response: HttpResponse = super().post_login(request, user, **more)
        device_remember(request, response, user.email)
        return response

    def get_reset_password_from_key_url(self, key: str) -> str:
        """By the address that we call ourselves: what a visitor's Host header says goes into no mail."""
        address = reverse("account_reset_password_from_key", kwargs={"uidb36": "UID", "key": "KEY"})
        return f"{settings.BASE_URL}{address.replace('UID-KEY', key)}"

    def send_mail(self, template_prefix: str, email: str, context: dict[str, Any]) -> None:
        """Written now, in the reader's language, and sent beside the request: how long a mail server takes tells nobody whether an
        account exists."""
        message = self.render_mail(template_prefix, email, {"email": email, "site": settings.BASE_URL, **context})
        _mails.submit(_mail_send, message)

    def get_client_ip(self, request: HttpRequest) -> str:
        return client_address(request)


class SessionsAdapter(DefaultUserSessionsAdapter):  # type: ignore[misc]
    def end_sessions(self, sessions: Any) -> None:
        """Of the account page: everywhere else, or one by one."""
        ended = list(sessions)
        super().end_sessions(ended)
        if ended:
            audit(ended[0].user, "session.ended", f"user {ended[0].user.email}", {"sessions": len(ended)})
