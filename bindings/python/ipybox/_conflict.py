"""Two distributions that bring a package `ipybox` cannot be used together."""

from __future__ import annotations

import os
import sys


def refuse_beside_the_original() -> None:
    """Whichever of them was installed last has overwritten files of the other.

    Raises:
        ImportError: The distribution `ipybox` is installed, too.
    """
    for place in sys.path:
        try:
            names = os.listdir(place or ".")
        except OSError:
            continue
        for name in names:
            # Not importlib.metadata, which takes as long to import as everything else here.
            if name.startswith("ipybox-") and name.endswith((".dist-info", ".egg-info")):
                version = name.rpartition(".")[0].removeprefix("ipybox-").partition("-")[0]
                raise ImportError(
                    f"the distributions ipybox {version} and ipybox-cpp are both installed, and "
                    "both bring the package ipybox: run `pip uninstall ipybox ipybox-cpp`, then "
                    "install the one that you want"
                )
