"""Launcher, so that `python cli.py …` works in a bare checkout; the commands are in synth.cli."""

from synth.cli import main

if __name__ == "__main__":
    main()
