"""tests/run_suite.py counts the cases of suites, and calls nothing a success that is none."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

RUNNER = Path(__file__).parents[1] / "run_suite.py"

# A Boost.Test program, as far as its report goes: cases whose names begin with "bad" fail always,
# those with "flaky" only together with others.
PROGRAM = """#!/bin/sh
echo "state $(stat -c %a "$XDG_STATE_HOME") $XDG_STATE_HOME"
for argument; do
    case "$argument" in
        killed) kill -9 $$ ;;
        silent) exit 0 ;;
        leaking) printf '  3 test cases out of 3 passed\\n'; exit 1 ;;
        asleep) sleep 60 ;;
        --run_test=*bad*) printf 'a.cpp(1): error: in "s/bad": no\\n'
            printf '  1 test case out of 1 failed\\n'; exit 201 ;;
        --run_test=*) printf '  1 test case out of 1 passed\\n'; exit ;;
        bad | flaky) printf 'a.cpp(1): error: in "s/%s": no\\n' "$argument"
            printf '  3 test cases out of 5 passed\\n  1 test case out of 5 failed\\n'
            printf '  1 test case out of 5 skipped\\n'; exit 201 ;;
        many) for case in a b c d; do printf 'a.cpp(1): error: in "s/%s": no\\n' $case; done
            printf '  1 test case out of 5 passed\\n  4 test cases out of 5 failed\\n'; exit 201 ;;
        good) printf '  1 test case out of 3 passed\\n'
            printf '  2 test cases out of 3 passed with warnings\\n' ;;
    esac
done
"""

MODULE = """import unittest
class Parts(unittest.TestCase):
    def test_parts(self):
        for number in range(3):
            with self.subTest(number):
                self.fail()
    def test_good(self):
        pass
class Unready(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        raise OSError
    def test_never(self):
        pass
"""


class RunSuite(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.place = Path(directory.name)
        self.program = self.place / "suite"
        self.program.write_text(PROGRAM)
        self.program.chmod(0o755)
        (self.place / "run").mkdir()
        # Not the run that this test is part of.
        self.environment = {name: value for name, value in os.environ.items()
                            if name not in ("IPYBOX_TEST_RETRY", "IPYBOX_TEST_RESUME",
                                            "IPYBOX_TEST_DEADLINE", "IPYBOX_TEST_LANE")}
        self.environment |= {"IPYBOX_TEST_RUN": str(self.place / "run"), "TMPDIR": str(self.place),
                             "IPYBOX_TEST_PASSED": str(self.place / "passed"),
                             "IPYBOX_TEST_SOURCES": "1234", "IPYBOX_TEST_PYTHON": sys.executable}

    def run_suite(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, RUNNER, *arguments], capture_output=True, text=True,
                              env=self.environment | environment, timeout=60)

    def boost(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        return self.run_suite("boost", "build suite", str(self.program), *arguments, **environment)

    def check_totals(self, line: str, *named: str) -> None:
        totals = self.run_suite("totals")
        self.assertEqual(totals.stdout.splitlines()[-1], line, totals.stderr)
        self.assertEqual(totals.returncode, int(not line.endswith(" 0 failed") or line[0] == "0"))
        for name in named:
            self.assertIn(name, totals.stderr)

    def test_a_suite_that_passes(self):
        suite = self.boost("good")
        self.assertEqual(suite.returncode, 0, suite.stderr)
        self.assertEqual(suite.stdout, "1..3\nok 1\nok 2\nok 3\n")
        self.check_totals("3 passed, 0 failed")

    def test_each_suite_has_a_state_directory_that_goes(self):
        words = self.boost("good").stderr.split()
        begin = words.index("state")
        self.assertEqual(words[begin + 1], "711")
        self.assertFalse(Path(words[begin + 2]).exists())

    def test_the_loader_looks_where_it_does_for_users(self):
        command = ["step", "places", "sh", "-c", 'test "${LD_LIBRARY_PATH-none}" = "$0"']
        build = {"IPYBOX_TEST_PROGRAM": "/b/ipybox"}
        for places, kept in (("/b/plugins/a:/b/tests", "none"), ("/b/plugins:/other", "/other")):
            with self.subTest(places):
                suite = self.run_suite(*command, kept, LD_LIBRARY_PATH=places, **build)
                self.assertEqual(suite.returncode, 0)

    def test_what_failed_is_counted_and_named(self):
        suite = self.boost("bad")
        self.assertEqual(suite.returncode, 1)
        self.assertIn("not ok 4 - s/bad\n", suite.stdout)
        self.assertIn('error: in "s/bad": no', suite.stderr)
        self.check_totals("3 passed, 1 failed", "failed: build suite; see ",
                          '    error: in "s/bad": no')

    def test_a_suite_that_ends_badly_failed(self):
        for how, line in (("killed", "0 passed, 1 failed"), ("silent", "0 passed, 1 failed"),
                          ("leaking", "3 passed, 1 failed")):
            with self.subTest(how):
                (self.place / "run" / "results.jsonl").unlink(missing_ok=True)
                self.assertEqual(self.boost(how, IPYBOX_TEST_RETRY="3").returncode, 1)
                self.check_totals(line, "failed: build suite")

    def test_few_failures_are_tried_again(self):
        self.assertEqual(self.boost("flaky", IPYBOX_TEST_RETRY="3").returncode, 0)
        self.check_totals("4 passed, 0 failed",
                          "unsteady: build suite: failed and then passed: s/flaky")

    def test_what_fails_again_failed(self):
        self.assertEqual(self.boost("bad", IPYBOX_TEST_RETRY="3").returncode, 1)
        self.check_totals("3 passed, 1 failed", "failed: build suite")

    def test_many_failures_are_not_tried_again(self):
        self.assertEqual(self.boost("many", IPYBOX_TEST_RETRY="3").returncode, 1)
        self.check_totals("1 passed, 4 failed")

    def test_without_retries_a_flake_is_a_failure(self):
        self.assertEqual(self.boost("flaky").returncode, 1)
        self.check_totals("3 passed, 1 failed")

    def test_unittest_cases_fail_once_and_fixtures_are_no_cases(self):
        (self.place / "test_parts.py").write_text(MODULE)
        suite = self.run_suite("unittest", "build python", str(self.place))
        self.assertEqual(suite.returncode, 1)
        self.check_totals("1 passed, 2 failed", "ERROR: setUpClass (test_parts.Unready)")

    def test_a_folder_without_tests_failed(self):
        self.assertEqual(self.run_suite("unittest", "build python", str(self.place)).returncode, 1)
        self.check_totals("0 passed, 1 failed")

    def test_steps_are_one_case(self):
        self.assertEqual(self.run_suite("step", "lint", "true").returncode, 0)
        self.assertEqual(self.run_suite("step", "install", "false").returncode, 1)
        self.assertEqual(self.run_suite("step", "missing", "/nonexistent").returncode, 1)
        self.check_totals("1 passed, 2 failed", "failed: install; see ")

    def test_nothing_at_all_is_no_success(self):
        self.check_totals("0 passed, 0 failed")

    def test_what_passed_with_these_sources_does_not_run_again(self):
        self.boost("good")
        (self.place / "run" / "results.jsonl").unlink()
        suite = self.boost("killed", IPYBOX_TEST_RESUME="yes")
        self.assertEqual(suite.stdout, "1..3\nok 1\nok 2\nok 3\n")
        self.check_totals("3 passed, 0 failed")
        for changed in ({"IPYBOX_TEST_SOURCES": "5678"}, {"IPYBOX_TEST_RESUME": ""}):
            with self.subTest(changed):
                environment = {"IPYBOX_TEST_RESUME": "yes"} | changed
                self.assertEqual(self.boost("killed", **environment).returncode, 1)

    def test_what_others_need_always_runs(self):
        made = self.place / "made"
        for _ in range(2):
            made.unlink(missing_ok=True)
            self.run_suite("build", "build", "touch", str(made), IPYBOX_TEST_RESUME="yes")
            self.assertTrue(made.exists())

    def test_no_suite_starts_too_late(self):
        self.boost("good", IPYBOX_TEST_DEADLINE=str(time.time() + 60))
        late = self.run_suite("step", "install", "false", IPYBOX_TEST_DEADLINE=str(time.time() - 1))
        self.assertEqual((late.returncode, late.stdout), (0, "1..0 # SKIP too late\n"))
        build = self.run_suite("build", "build-clang", "true", IPYBOX_TEST_DEADLINE="1")
        self.assertEqual(build.returncode, 1)
        self.check_totals("3 passed, 0 failed", "left out, it is too late: install\n",
                          "left out, it is too late: build-clang, and what needs it")

    def test_suites_that_broke_off_failed(self):
        self.boost("good", IPYBOX_TEST_LANE="build-some")
        self.run_suite("broke-off", "build-other")
        self.check_totals("3 passed, 1 failed", "failed: the suites build-other broke off")

    def test_one_that_is_ended_leaves_nothing(self):
        command = [sys.executable, RUNNER, "boost", "build suite", self.program, "asleep"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env=self.environment) as process:
            words: list[str] = []
            while "state" not in words[:-2]:
                words += process.stderr.readline().split()
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=20)
        self.assertNotEqual(process.returncode, 0)
        state = words[words.index("state") + 2]
        self.assertFalse(Path(state).exists())
        asleep = subprocess.run(["pgrep", "--full", str(self.program)], capture_output=True)
        self.assertEqual(asleep.stdout, b"")
        results = (self.place / "run" / "results.jsonl").read_text().splitlines()
        self.assertEqual([json.loads(line).get("begun") for line in results], [True])
        self.check_totals("0 passed, 1 failed", "failed: build suite broke off")

    def test_sanitized_programs_have_a_larger_stack(self):
        suite = self.run_suite("--stack", "67108864", "step", "stack", "sh", "-c",
                               "test $(ulimit -s) = 65536")
        self.assertEqual(suite.returncode, 0, suite.stderr)
