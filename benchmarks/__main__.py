"""``python -m benchmarks``: the command from a plain checkout, with nothing installed but the dependencies."""

import sys

from nooom.benchmarks.requirements import missing

if __name__ == "__main__":
    if (lacks := missing()) is not None:
        print(f"nooom: {lacks}", file=sys.stderr)
        sys.exit(3)  # can't measure here
    from nooom.benchmarks.cli import main

    main()
