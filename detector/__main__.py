"""Start the program, as ``python -m detector`` and as ``detect-video``.

``main`` imports what it needs, so that signals are handled before anything else loads.
"""


def main() -> None:
    from detector.core.run.signals import leave_on_signals

    leave_on_signals()
    from detector.core.cli import main as run

    run()


if __name__ == "__main__":
    main()
