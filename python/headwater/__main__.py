"""`python -m headwater …`: the command line."""

import signal
import sys
import threading

from headwater import _headwater


def main() -> int:
    """Runs the command line in a thread. Ctrl-C and SIGTERM ask it to end in order; the second time they end the process."""
    status: list[int] = []
    thread = threading.Thread(target=lambda: status.append(_headwater.command(sys.argv[1:])), name="headwater")

    def stop(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        _headwater.interrupt(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    thread.start()
    while thread.is_alive():
        # Handlers run between two waits.
        thread.join(0.1)
    return status[0] if status else 1


if __name__ == "__main__":
    sys.exit(main())
