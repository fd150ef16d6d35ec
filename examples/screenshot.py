"""Take a screenshot of a report, as in the README.

    make demo
    python examples/screenshot.py runs/demo/report.html docs/report.png

It needs Chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

WIDTH, HEIGHT = 1100, 1130


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    page, picture = (Path(argument).resolve() for argument in sys.argv[1:])
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        print("Chromium is missing: install it, for example with apt install chromium", file=sys.stderr)
        return 1
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    subprocess.run(
        [chromium, *options, f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={picture}", page.as_uri()],
        check=True,
        capture_output=True,
    )
    print(f"{picture}: {picture.stat().st_size // 1024} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
