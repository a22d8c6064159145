"""The page of every flag: the help of every command, as a terminal of 100 columns shows it.

After a change of a flag: `python -m tests.cli.flags_page`.
"""

from tests.cli.commands import commands
from tests.cli.pages import DOCS
from tests.cli.test_help import context

PAGE = DOCS / "reference" / "commands.md"
COLUMNS = 100
HEAD = """# Every flag

What `hierrouter COMMAND --help` says. Which flags commands share: [cli.md](../cli.md).
"""


def text() -> str:
    """The whole page."""
    return "\n".join(
        [HEAD, *(f"## {path}\n\n```text\n{_help(path)}\n```\n" for path, _ in commands())]
    )


def _help(path: str) -> str:
    found = context(path)
    found.terminal_width = COLUMNS
    return str(found.command.get_help(found)).strip()


if __name__ == "__main__":
    PAGE.write_text(text())
