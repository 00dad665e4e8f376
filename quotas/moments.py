"""Points in time that people write: days and times that can be told in every zone."""

from __future__ import annotations

from datetime import UTC, datetime

from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime
from django.utils.translation import gettext as _

#: Nothing here is before the first or after the last of these. Times near the edges of the calendar can't be told in every zone.
FIRST, LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)


def moment_check(found: datetime) -> datetime:
    """In UTC; without a zone it is in the reader's. Raises ValueError outside of the years that there are here."""
    try:
        # The reader's zone at an edge of the calendar may not be able to tell the time at all.
        exact = (found if timezone.is_aware(found) else timezone.make_aware(found)).astimezone(UTC)
    except OverflowError as error:
        raise ValueError("beyond the calendar") from error
    if not FIRST <= exact <= LAST:
        raise ValueError("beyond the years that there are here")
    return exact


def moment_parse(text: str) -> datetime:
    """A day (its begin in the reader's zone) or a time in ISO 8601. Raises ValueError."""
    found = parse_datetime(text)
    if found is None and (day := parse_date(text)) is not None:
        found = datetime(day.year, day.month, day.day)  # noqa: DTZ001 -- made aware by moment_check
    if found is None:
        raise ValueError("no time")
    return moment_check(found)


def moment_validate(found: datetime) -> None:
    """For serializers and forms. Raises Django's ValidationError."""
    try:
        moment_check(found)
    except ValueError:
        raise ValidationError(_("Must be a time between 1970 and 2200.")) from None
