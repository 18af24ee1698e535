"""`python -m schemas write | check`: make the generated contract files, or say how they differ from the structs."""

from __future__ import annotations

import argparse
import sys

from schemas import generated

CHECK_LINES_MAX = 60
"""Enough to see what changed; `write` and `git diff` show all of it."""


def main() -> int:
    """0 if all is as it should be; 1 with the differences; 2 if examples or markers are missing."""
    parser = argparse.ArgumentParser(
        prog="python -m schemas",
        description="The contract's generated files: schemas/json, schemas/asyncapi.yaml and the tables in docs/events.md.",
    )
    parser.add_argument("action", choices=("write", "check"), help="write the files, or check them and write nothing")
    action = parser.parse_args().action
    try:
        if action == "write":
            for path in generated.write():
                print(path.relative_to(generated.PACKAGE.parent))
            return 0
        found = "".join(generated.differences()).splitlines()
    except (generated.ExampleError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    if not found:
        return 0
    print("\n".join(found[:CHECK_LINES_MAX]))
    print("The contract differs from its files. If you mean the change: python -m schemas write, and review the diff.")
    return 1


if __name__ == "__main__":
    sys.exit(main())
