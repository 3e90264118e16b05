"""`python -m splitreel`, the same as the `splitreel` command."""

from splitreel.serve.cli import main

if __name__ == "__main__":
    main()
