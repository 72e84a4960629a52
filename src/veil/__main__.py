"""``python -m veil`` and the ``veil`` command."""

from veil.cli import main

if __name__ == "__main__":
    main()
