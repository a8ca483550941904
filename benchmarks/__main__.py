"""``python -m benchmarks``: the command from a plain checkout, with nothing installed but the dependencies."""

from nooom.benchmarks.cli import main

if __name__ == "__main__":
    main()
