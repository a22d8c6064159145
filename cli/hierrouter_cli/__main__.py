"""The installed command, and `python -m hierrouter_cli`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it without a trace, even while it is being imported."""
    try:
        from hierrouter_cli import app
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted; nothing was begun\n")
        sys.exit(130)  # `EXIT_INTERRUPTED` of the module that could not be imported
    app.main()


if __name__ == "__main__":
    main()
