"""Two distributions that bring a package `ipybox` cannot be used together."""

from __future__ import annotations

from importlib import metadata


def refuse_beside_the_original() -> None:
    """Whichever of them was installed last has overwritten files of the other.

    Raises:
        ImportError: The distribution `ipybox` is installed, too.
    """
    try:
        version = metadata.version("ipybox")
    except metadata.PackageNotFoundError:
        return
    raise ImportError(
        f"the distributions ipybox {version} and ipybox-cpp are both installed, and both bring the "
        "package ipybox: run `pip uninstall ipybox ipybox-cpp`, then install the one that you want"
    )
