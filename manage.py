#!/usr/bin/env python
"""Django's command line for this installation."""

import gc
import os
import sys

if __name__ == "__main__":
    if os.geteuid() == 0:
        # Root's part, and then this same command as the control plane's account (docs/operations.md).
        from nebulagrid.rooted.entry import begin

        begin(sys.argv)
    # What a start loads stays, and what migrations make comes by the thousand: looking for garbage so often took a fifth of the time.
    gc.set_threshold(50_000, 20, 20)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "nebulagrid.settings")
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        if not str(error).startswith("NEBULA_"):  # a fault of the code, not of a setting
            raise
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        # The reader (head, less) has enough; what is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
