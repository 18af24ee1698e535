"""What a command says when it can't do what was asked: one sentence, and the exit code that goes with it."""

from __future__ import annotations

EXIT_FAILURE = 1
EXIT_USAGE = 2


class ConsoleError(Exception):
    """One sentence for a person: what is wrong and what to do about it."""

    exit_code = EXIT_FAILURE


class UsageError(ConsoleError):
    """The command line or the file it names asks for something that does not exist or makes no sense."""

    exit_code = EXIT_USAGE
