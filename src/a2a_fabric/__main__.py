"""`python -m a2a_fabric` is the command `a2a-fabric`."""

from a2a_fabric.cli import main

if __name__ == "__main__":
    main()
