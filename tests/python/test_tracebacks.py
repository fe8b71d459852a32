"""What the traceback of a cell shows, by a real kernel with the start-up extension and no host."""
import os
import shutil
import tempfile
import unittest

try:
    from jupyter_client.manager import start_new_kernel
except ImportError as error:
    raise unittest.SkipTest(f"jupyter_client is not installed ({error}); scripts/setup --tests does that")


class TracebackTest(unittest.TestCase):
    SHELL = {}

    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.mkdtemp(prefix="ipybox-tracebacks-")
        cls.addClassCleanup(shutil.rmtree, cls.directory, ignore_errors=True)
        environment = {**os.environ, **cls.SHELL, "PYTHONPATH": os.environ["IPYBOX_TEST_PYTHON_PACKAGE"],
                       "IPYTHONDIR": cls.directory, "HOME": cls.directory}
        cls.manager, cls.client = start_new_kernel(
            startup_timeout=120, extra_arguments=["--ext=ipybox_kernel"], env=environment, cwd=cls.directory)
        cls.addClassCleanup(cls.manager.shutdown_kernel, now=True)
        cls.addClassCleanup(cls.client.stop_channels)

    def lines(self, code):
        """The traceback's lines of source, each with its mark."""
        found = []

        def output(message):
            if message["msg_type"] == "error":
                found.extend("\n".join(message["content"]["traceback"]).splitlines())
        self.client.execute_interactive(code, output_hook=output, timeout=120)
        return [line.removeprefix("---->").strip() for line in found if line.startswith(("---->", "      "))]


class RewrittenTest(TracebackTest):
    def test_lines_are_as_they_were_written(self):
        for code, shown in (
                ("import os\n!echo hi\n1/0", ["1 import os", "2 !echo hi", "3 1/0"]),
                ("names = !echo a\nraise ValueError(names)", ["1 names = !echo a", "2 raise ValueError(names)"]),
                ("\n\n!!echo a\n%cd -q .\n1/0\n", ["1 !!echo a", "2 %cd -q .", "3 1/0"]),
                ("if True:\n    !echo a\n    1/0", ["1 if True:", "2     !echo a", "3     1/0"]),
                ("%%bash\nexit 3", ["1 %%bash"])):
            with self.subTest(code):
                self.assertEqual(self.lines(code), shown)

    def test_a_function_of_an_earlier_cell(self):
        self.assertEqual(self.lines("x = 1\ndef f():\n    !echo a\n    return 1/0"), [])
        self.assertEqual(self.lines("f()"), ["1 f()", "2 def f():", "3     !echo a", "4     return 1/0"])
        # What Python reads of it is Python.
        self.assertEqual(self.lines("import ast, inspect; ast.parse(inspect.getsource(f))"), [])

    def test_where_lines_are_not_the_same_python_is_shown(self):
        self.assertEqual(self.lines("!echo a \\\n b\n1/0"), ["1 get_ipython().system('echo a   b')", "2 1/0"])
        # A cell that calls what IPython calls is shown so.
        self.assertEqual(self.lines("get_ipython().system('echo a')\n1/0"), ["1 get_ipython().system('echo a')", "2 1/0"])


class GuardedTest(TracebackTest):
    SHELL = {"IPYBOX_SHELL": "ask"}

    def test_a_command_that_may_not_run(self):
        """There is nobody to ask."""
        for code, shown in (("x = 1\n!echo hi", ["1 x = 1", "2 !echo hi"]),
                            ("x = !echo hi", ["1 x = !echo hi"]),
                            ("%%bash\necho hi", ["1 %%bash"])):
            with self.subTest(code):
                self.assertEqual(self.lines(code), shown)


if __name__ == "__main__":
    unittest.main()
