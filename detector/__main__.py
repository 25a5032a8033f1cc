"""Start the program, as ``python -m detector`` and as ``detect-video``.

``main`` handles signals first and only then imports the rest of the program.
"""


def main() -> None:
    from detector.core.run.signals import leave_on_signals

    leave_on_signals()
    from detector.core.cli import main as run

    run()


if __name__ == "__main__":
    main()
