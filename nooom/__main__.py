"""``python -m nooom``: the command, where its script is not on the path."""

from nooom.benchmarks.cli import main

if __name__ == "__main__":
    main()
