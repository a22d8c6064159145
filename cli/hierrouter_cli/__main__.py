"""The installed command, and `python -m hierrouter_cli`."""

import os
import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it without a trace, even while it is being imported."""
    open_standard_files()
    try:
        from hierrouter_cli import app
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted; nothing was begun\n")
        sys.exit(130)  # `EXIT_INTERRUPTED` of the module that could not be imported
    except OSError as error:
        sys.stderr.write(f"error: cannot begin: {error.strerror}; allow more, and run it again\n")
        sys.exit(1)  # `EXIT_FAILED` of the same module
    app.main()


def open_standard_files() -> None:
    """Put the null device in the place of stdin, stdout and stderr where they are closed.

    Else the next file that is opened would get the number of one of them, and whatever is printed
    would go into that file. Python itself prints messages on stdout if there is no stderr.

    Raises:
        OSError: the null device cannot be opened.
    """
    # In the order of their numbers, because the system gives out the smallest one that is free.
    if sys.stdin is None:
        os.open(os.devnull, os.O_RDONLY)  # takes the number; who reads stdin still sees None
    if sys.stdout is None:
        # Only for reading, so that a result that cannot be printed is an error.
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", buffering=1)  # noqa: PTH123, SIM115


if __name__ == "__main__":
    main()
