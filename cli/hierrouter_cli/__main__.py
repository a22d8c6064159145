"""The installed command, and `python -m hierrouter_cli`."""

import sys


def main() -> None:
    """Run it; Ctrl-C while it is still imported ends as it does later, without a trace."""
    try:
        from hierrouter_cli import app
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted; nothing was begun\n")
        sys.exit(130)
    app.main()


if __name__ == "__main__":
    main()
