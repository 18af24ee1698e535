"""Composition root of the command line: `gpugrid …` or `python -m services.console …`."""

from __future__ import annotations


def main() -> None:
    """Run the command that the arguments name; exits with its code (0 done, 1 failed, 2 wrong usage)."""
    from services.console.app import build_app

    build_app()(prog_name="gpugrid")


if __name__ == "__main__":
    main()
