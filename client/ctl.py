"""nebula-ctl: the command line. Exit codes and every command: docs/cli.md.

Start-up is part of the product: only the module of the named command is imported, and of it only that command is built.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any

from client.errors import ExitCode, NebulaError, UsageFault, exit_code_for
from client.i18n import _

if TYPE_CHECKING:
    import typer

#: (word, or group and word) -> (module of client.commands, function, help)
COMMANDS: dict[tuple[str, ...], tuple[str, str, str]] = {
    ("login",): ("account", "login", _("Sign in and keep the token in the profile.")),
    ("logout",): ("account", "logout", _("Remove the profile.")),
    ("whoami",): ("account", "whoami", _("Who you are here, and your quota.")),
    ("quota", "show"): ("quota", "quota_show", _("Your limits, and what is used of them.")),
    ("quota", "ask"): ("quota", "quota_ask", _("Ask for more than a limit allows.")),
    ("quota", "requests"): ("quota", "quota_requests", _("Requests for more: yours, and those that you may see.")),
    ("usage",): ("quota", "usage", _("What was used in a month, and what it costs.")),
    ("status",): ("pool", "status", _("The pool at a glance.")),
    ("submit",): ("submit", "submit", _("Submit a job: nebula-ctl submit [OPTIONS] -- PROGRAM [ARG]…")),
    ("clone",): ("clone", "job_clone", _("Submit a job like an earlier one.")),
    ("apply",): ("apply", "apply", _("See to it that the jobs of a file are there.")),
    ("list",): ("jobs", "job_list", _("Your jobs, newest first.")),
    ("show",): ("jobs", "job_show", _("All about one job.")),
    ("logs",): ("watch", "logs", _("A job's output.")),
    ("cancel",): ("jobs", "job_cancel", _("Stop jobs, or take them out of the queue.")),
    ("hold",): ("jobs", "job_hold", _("Keep waiting jobs from starting.")),
    ("release",): ("jobs", "job_release", _("Let held jobs start.")),
    ("why",): ("jobs", "job_why", _("Why a job waits, or how it ended.")),
    ("wait",): ("watch", "wait", _("Wait for a job's end; exit 0 only if it succeeds.")),
    ("events",): ("jobs", "job_events", _("What happened to a job, in order.")),
    ("artifacts", "list"): ("jobs", "artifact_list", _("The files that a job left.")),
    ("artifacts", "get"): ("jobs", "artifact_get", _("Fetch one of them.")),
    ("projects", "list"): ("people", "project_list", _("Your projects.")),
    ("projects", "show"): ("people", "project_show", _("A project with its members.")),
    ("projects", "create"): ("people", "project_create", _("Make a project (staff).")),
    ("projects", "add"): ("people", "member_add", _("Add a member (leads and staff).")),
    ("projects", "role"): ("people", "member_role", _("Change a member's role (leads and staff).")),
    ("projects", "remove"): ("people", "member_remove", _("Take a member out (leads and staff).")),
    ("tokens", "list"): ("people", "token_list", _("Your tokens.")),
    ("tokens", "create"): ("people", "token_create", _("Make a token for a program or CI.")),
    ("tokens", "revoke"): ("people", "token_revoke", _("Make a token useless everywhere.")),
    ("secrets", "list"): ("secrets", "secret_list", _("The secrets that your jobs may use.")),
    ("secrets", "set"): ("secrets", "secret_set", _("Set a secret; its value comes from standard input or a file.")),
    ("secrets", "delete"): ("secrets", "secret_delete", _("Delete a secret.")),
    ("node", "list"): ("pool", "node_list", _("The machines.")),
    ("node", "show"): ("pool", "node_show", _("All about one machine.")),
    ("node", "add"): ("pool", "node_add", _("Make a token with which a machine may join (staff).")),
    ("node", "drain"): ("pool", "node_drain", _("Give a machine no new jobs (staff).")),
    ("node", "label"): ("pool", "node_label", _("Give a machine labels that jobs may ask for (staff).")),
    ("node", "resume"): ("pool", "node_resume", _("Give a machine jobs again (staff).")),
    ("gpu", "list"): ("pool", "gpu_list", _("The cards.")),
    ("alerts", "list"): ("alerts", "alert_list", _("What rules say of cards, machines and jobs, open ones first.")),
    ("alerts", "ack"): ("alerts", "alert_ack", _("Acknowledge an alert: somebody looks after it (staff).")),
    ("alerts", "mute"): ("alerts", "alert_mute", _("Tell nobody of a rule, a machine or a card for a while (staff).")),
    ("alerts", "mutes"): ("alerts", "alert_mutes", _("What is muted now (staff).")),
    ("alerts", "unmute"): ("alerts", "alert_unmute", _("Lift a mute (staff).")),
    ("incidents", "list"): ("incidents", "incident_list", _("Faults of cards, the latest first.")),
    ("incidents", "show"): ("incidents", "incident_show", _("One fault: what happened, and its evidence.")),
    ("incidents", "note"): ("incidents", "incident_note", _("Add a note to it (staff).")),
    ("incidents", "close"): ("incidents", "incident_close", _("Close it with its review (staff).")),
    ("drill",): ("drill", "drill", _("Throw a fault at a simulated card and watch it heal (staff).")),
}
GROUPS = {
    "quota": _("Limits, and asking for more."),
    "artifacts": _("Files that jobs left."),
    "node": _("The machines of the pool."),
    "gpu": _("The cards of the pool."),
    "alerts": _("What rules say of cards, machines and jobs."),
    "incidents": _("Faults of cards."),
    "projects": _("Who works together."),
    "tokens": _("What programs sign in with."),
    "secrets": _("Passwords and tokens for jobs."),
}


#: What a group does when it is named alone: the command that shows what there is.
BARE = {
    "quota": "show",
    "node": "list",
    "gpu": "list",
    "alerts": "list",
    "incidents": "list",
    "projects": "list",
    "tokens": "list",
    "secrets": "list",
}


def build(only: str | None = None) -> typer.Typer:
    """The command tree; ``only`` = the first word, the rest is left out (it would cost start-up time)."""
    import typer

    from client.commands.light import LightCommand, LightGroup
    from client.commands.root import root

    app = typer.Typer(
        name="nebula-ctl",
        cls=LightGroup,
        help=_("Run jobs on the lab's GPUs."),
        no_args_is_help=True,
        add_completion=only is None,
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(root)
    groups = {
        name: typer.Typer(cls=LightGroup, help=text, no_args_is_help=name not in BARE)
        for name, text in GROUPS.items()
        if only in {None, name}
    }
    for name, group in groups.items():
        if name in BARE:
            module_name, function, _text = COMMANDS[name, BARE[name]]
            bare = getattr(import_module(f"client.commands.{module_name}"), function)
            group.callback(invoke_without_command=True, cls=LightGroup)(_bare(bare))
        app.add_typer(group, name=name)
    for words, (module_name, function, text) in COMMANDS.items():
        if only is not None and words[0] != only:
            continue
        module = import_module(f"client.commands.{module_name}")
        settings: dict[str, Any] = {"help": text, "cls": LightCommand}
        if words == ("submit",):
            settings |= {"cls": module.SubmitCommand, "options_metavar": "[OPTIONS] -- PROGRAM [ARG]..."}
        parent = app if len(words) == 1 else groups[words[0]]
        parent.command(words[-1], **settings)(_guarded(getattr(module, function)))
    return app


class PipeClosed(Exception):
    """The reader of our output went away."""


def _guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Typer would turn a broken pipe into exit code 1, as if the job had failed."""

    @wraps(command)
    def run_command(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError as error:
            raise PipeClosed from error

    return run_command


def _bare(command: Callable[..., None]) -> Callable[..., None]:
    """The group's own callback: carries out ``command`` when no other is named."""
    import typer

    from client.commands import common

    def group(ctx: typer.Context, is_json: common.JsonFlag = False, profile: common.ProfileOption = None) -> None:
        if ctx.invoked_subcommand is None:
            _guarded(command)(is_json=is_json, profile=profile)
            return
        # What stands between the group and its command counts for the command.
        common.defaults.is_json = common.defaults.is_json or is_json
        common.defaults.profile = profile or common.defaults.profile

    group.__annotations__ = {"ctx": typer.Context, "is_json": common.JsonFlag, "profile": common.ProfileOption, "return": None}
    return group


def _first_word(argv: Sequence[str]) -> str | None:
    """The command's first word when the line is plain enough to build only that one."""
    first = argv[0] if argv else ""
    return first if any(words[0] == first for words in COMMANDS) else None


def _words_check(argv: Sequence[str]) -> None:
    """Raises UsageFault for a word with bytes that are no UTF-8: JSON can't carry them to the control plane."""
    from client.encoding import bytes_shown, is_text

    for number, word in enumerate(argv, start=1):
        if not is_text(word):
            message = _(
                "Word {number} of the command line is not UTF-8: {word}. "
                "Rename the file, or put the command into a script with a plain name."
            )
            raise UsageFault("not_utf8", message.format(number=number, word=bytes_shown(word)))


def run(argv: Sequence[str]) -> int:
    """Carry out one command line; answers with the exit code. Never raises for what a user, a network or a file did."""
    ours = list(argv[: argv.index("--")]) if "--" in argv else list(argv)
    is_json = "--json" in ours
    try:
        if ours == ["--version"]:
            from client import __version__

            sys.stdout.write(f"nebula-ctl {__version__}\n")
            sys.stdout.flush()
            return ExitCode.OK
        _words_check(argv)
        code = _dispatch(argv)
        sys.stdout.flush()
        return code
    except (PipeClosed, BrokenPipeError):
        # The reader (head, less) has enough. What is still buffered has nowhere to go; without this Python complains at exit.
        _silence(sys.stdout)
        return ExitCode.PIPE_CLOSED
    except SystemExit as ending:
        # So Rich and Typer end when the reader goes away while help is printed.
        if not isinstance(ending.__context__, BrokenPipeError):
            raise
        _silence(sys.stdout)
        return ExitCode.PIPE_CLOSED
    except KeyboardInterrupt:
        _complain("interrupted", _("Interrupted."), is_json=is_json)
        return ExitCode.INTERRUPTED
    except NebulaError as error:
        _complain(error.code, error.message, fields=error.fields, is_json=is_json)
        return exit_code_for(error)
    except Exception as error:
        if os.environ.get("NEBULA_DEBUG"):
            raise
        message = _("nebula-ctl itself failed ({kind}: {why}); set NEBULA_DEBUG=1 for the details, and please report them.")
        _complain("internal_error", message.format(kind=type(error).__name__, why=error), is_json=is_json)
        return ExitCode.FAILED


def _dispatch(argv: Sequence[str]) -> int:
    from typer import Abort, TyperException

    from client.commands import common

    common.defaults = common.Defaults()
    try:
        answer = build(_first_word(argv))(args=list(argv), prog_name="nebula-ctl", standalone_mode=False)
    except Abort:
        raise KeyboardInterrupt from None
    except TyperException as error:
        # No arguments at all: Typer's way of showing the help.
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.stderr.write(error.format_message() + "\n")
            return ExitCode.USAGE
        context = getattr(error, "ctx", None)
        place = context.command_path if context is not None else "nebula-ctl"
        message = " ".join(error.format_message().split()).rstrip(".")
        raise common.usage_fault(_("{what}; see {command} --help.").format(what=message, command=place)) from error
    finally:
        common.clients_close()
    return answer if isinstance(answer, int) else ExitCode.OK


def _complain(code: str, message: str, *, fields: dict[str, Any] | None = None, is_json: bool) -> None:
    """One sentence, or the API's error shape, on standard error."""
    from client.output import safe

    try:
        sys.stdout.flush()
        if is_json:
            sys.stderr.write(json.dumps({"code": code, "message": message, "fields": fields or {}}, ensure_ascii=False) + "\n")
        else:
            sys.stderr.write(_("Error: {message}").format(message=safe(message)) + "\n")
            for line in _details(code, message, fields or {}):
                sys.stderr.write(f"  {line}\n")
        sys.stderr.flush()
    except BrokenPipeError:
        _silence(sys.stdout)


def _details(code: str, message: str, fields: dict[str, Any]) -> list[str]:
    """What the sentence does not say yet: further wrong fields, and when a quota begins anew."""
    from client.output import safe, time_local, time_parse

    lines = []
    if code == "invalid":
        for name, value in fields.items():
            problems = [str(item) for item in value] if isinstance(value, list) else [str(value)]
            lines += [f"{safe(name)}: {safe(text)}" for text in problems if text not in message]
    resets_at = fields.get("resets_at")
    if isinstance(resets_at, str) and time_parse(resets_at) is not None:
        lines.append(_("It begins anew at {when}.").format(when=time_local(resets_at)))
    return lines


def _silence(stream: Any) -> None:
    """Point a stream that nobody reads at /dev/null."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (OSError, ValueError):
        return


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        # A terminal that can't show a sign gets \u…; a job's name must not end the command.
        getattr(stream, "reconfigure", lambda **_k: None)(errors="backslashreplace")
    sys.exit(int(run(sys.argv[1:])))


if __name__ == "__main__":
    main()
