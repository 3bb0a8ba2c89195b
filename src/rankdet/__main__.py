"""`python -m rankdet`: the same as the command `rankdet`."""

import sys
from contextlib import suppress
from pathlib import Path


def main() -> None:
    """Run the command line, without the modules of the working folder.

    `python -m` looks for modules there first, where a random.py of the user's is not the module
    that Python itself means. The folder stays where it has to: if this package is in it.
    """
    with suppress(FileNotFoundError):  # the working folder was deleted
        if Path(sys.path[0]) == Path.cwd() != Path(__file__).parents[1]:
            del sys.path[0]
    from rankdet.cli import main as command

    command()


if __name__ == "__main__":
    main()
