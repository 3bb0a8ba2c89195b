"""`python -m rankdet`: the same as the command `rankdet`."""

from rankdet.cli import main

if __name__ == "__main__":
    main()
