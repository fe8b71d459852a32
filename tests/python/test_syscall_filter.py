"""The system call filters of this machine, compared with the numbers of its kernel's headers."""
import os
import platform
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "machines"))
from filters import FilterCases

PRINT = Path(os.environ["IPYBOX_TEST_PROGRAM"]).parent / "tests/print_filters"


class FilterTest(FilterCases, unittest.TestCase):
    machine = platform.machine()
    compiler = ("cc",)

    @classmethod
    def setUpClass(cls):
        cls.output = subprocess.run([PRINT], check=True, capture_output=True, text=True, timeout=60).stdout
        cls.read()
