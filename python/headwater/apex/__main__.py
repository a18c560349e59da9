"""`python -m headwater.apex [--devices npu,cuda] script.py …`: runs a script that imports `apex`, without editing it."""

import argparse
import os
import runpy
import sys
from typing import Optional, Sequence

from headwater.apex import install


def main(args: Optional[Sequence[str]] = None) -> None:
    """Runs a script with its arguments as `python script.py …` would, after `install`."""
    parser = argparse.ArgumentParser(
        prog="python -m headwater.apex", description="Runs a script whose `import apex` is Headwater's.", allow_abbrev=False
    )
    parser.add_argument("--devices", default="", help="device names that mean the CPU, of npu and cuda, with commas")
    parser.add_argument("-m", action="store_true", dest="module", help="the script is the name of a module")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args(args)
    install([name for name in given.devices.split(",") if name])
    sys.argv = [given.script, *given.arguments]
    if given.module:
        sys.path.insert(0, "")
        runpy.run_module(given.script, run_name="__main__", alter_sys=True)
        return
    sys.path.insert(0, os.path.dirname(os.path.abspath(given.script)))
    runpy.run_path(given.script, run_name="__main__")


if __name__ == "__main__":
    main()
