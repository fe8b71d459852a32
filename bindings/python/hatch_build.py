"""Has the program built that the wheel brings along, and says which machines the wheel is for."""
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ProgramHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            raise SystemExit("an editable installation has no program in it: build the wheel, or put a program's "
                             "path into IPYBOX_PROGRAM and bindings/python into PYTHONPATH")
        subprocess.run([Path(self.root) / "scripts/wheel", "--program"], check=True)
        build_data["pure_python"] = False
        # For any Python: nothing in it is an extension module. auditwheel names the C library.
        build_data["tag"] = "py3-none-linux_" + (os.environ.get("IPYBOX_WHEEL_ARCH") or platform.machine())
