"""The command line's way in: ``planner`` and ``python -m planner``."""

import sys

__all__ = ["main"]

_INTERRUPTED = 130  # 128 and the signal's number, as shells have it


def main() -> None:
    """Run the command line and leave with its exit code; Ctrl-C while all that is imported leaves without a traceback.

    Even the command line's own modules are imported here and not above, where nothing could catch it.
    """
    try:
        from planner.cli.run import run  # noqa: PLC0415

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = _INTERRUPTED
    sys.exit(code)


if __name__ == "__main__":
    main()
