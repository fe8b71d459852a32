"""scripts/lint_coroutines.py finds what it says and leaves the rest alone."""
import importlib.util
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "lint_coroutines.py"
spec = importlib.util.spec_from_file_location("lint_coroutines", SCRIPT)
lint = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lint)


def lines(text: str) -> list[int]:
    return [line for line, _ in lint.findings(text)]


class Finds(unittest.TestCase):
    def check_found(self, *texts: str) -> None:
        for text in texts:
            with self.subTest(text):
                self.assertEqual(lines("void f() {\n" + text + "\n}"), [2])

    def test_conditions(self):
        self.check_found(
            "if (co_await ready()) stop();",
            "while (!co_await ready()) {}",
            "switch (co_await next()) {}",
            "if (int n = 0; co_await more(n)) stop();",
            "for (; co_await more(); ) step();",
            "if (bool b = co_await ready()) stop();",
        )

    def test_temporaries(self):
        self.check_found(
            "co_await send(Message{1, 2});",
            "co_await send({1, 2});",
            "auto x = co_await send(std::vector<int>{1});",
            "co_return co_await send(Message {1});",
            "co_await run([&] { stop(); });",
            "co_await run([this]() { stop(); });",
            "co_await run([x = 1](int y) mutable { return x; });",
            "co_await send(a ? b : c);",
            "x = a ? co_await b() : c;",
        )

    def test_catch_blocks(self):
        self.check_found("try { a(); } catch (const E& e) { co_await b(); }")

    def test_parameters(self):
        self.check_found(
            "awaitable<void> f(std::string_view text);",
            "awaitable<std::vector<int>> f(int a, Message&& b);",
            "awaitable<void> C::f(Options options = {});",
            "awaitable<void> f(Options options = Options{1});",
            "auto g = [](std::string_view text) -> awaitable<void> { co_return; };",
        )


class Leaves(unittest.TestCase):
    def check_clean(self, *texts: str) -> None:
        for text in texts:
            with self.subTest(text):
                self.assertEqual(lines("void f() {\n" + text + "\n}"), [])

    def test_plain_forms(self):
        self.check_clean(
            "if (auto x = co_await next()) use(x);",
            "while (auto [a, b] = co_await next()) use(a);",
            "auto x = co_await next(); if (x) { y = Message{1}; }",
            "const Message m{1}; co_await send(m);",
            "auto l = [&] { stop(); }; co_await run(l);",
            "co_await run([](int a) { return a; });",
            "co_await timer.async_wait(as_result);\nauto x = a ? b : c;",
            "if (ready) { co_await next(); } else { x = {1}; }",
            "for (auto& m : members) { auto d = co_await m->decide(call); }",
            "co_await values[0].get();",
            "try { co_await a(); } catch (const E&) { failed = true; }",
        )

    def test_comments_strings_and_directives(self):
        self.check_clean(
            "// if (co_await ready())",
            "/* co_await send({1}); */",
            'say("co_await send({1})");',
            'say(R"x(co_await send({1}))x");',
            "#define F co_await send({1})",
            "int million = 1'000'000; co_await next();",
        )

    def test_parameters_by_value(self):
        self.check_clean(
            "awaitable<void> f(Sandbox& sandbox, std::string text, Duration limit = one_minute);",
            "using Factory = std::function<awaitable<Decision>(ToolCall)>;",
        )

    def test_an_exception_is_named(self):
        self.check_clean("co_await send({1});  // lint: coroutine (an int list is built in place)")


class Command(unittest.TestCase):
    def lint(self, *arguments):
        return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=60)

    def test_exit_codes_tell_clean_found_and_unread(self):
        with tempfile.TemporaryDirectory() as place:
            clean, trap = Path(place) / "clean.cpp", Path(place) / "trap.cpp"
            clean.write_text("int x;\n")
            trap.write_text("void f() {\n    if (co_await g()) h();\n}\n")
            self.assertEqual(self.lint(clean).returncode, 0)
            found = self.lint(clean, trap)
            self.assertEqual((found.returncode, found.stdout), (
                1, f"{trap}:2: co_await in a condition: bind it to a local first\n"))
            unread = self.lint(Path(place) / "absent.cpp", trap)
            self.assertEqual(unread.returncode, 2)
            self.assertIn("absent.cpp: No such file", unread.stderr)
            self.assertIn("trap.cpp:2:", unread.stdout)

    def test_it_explains_itself(self):
        explained = self.lint("--help")
        self.assertEqual((explained.returncode, explained.stderr), (0, ""))
        self.assertIn("Exit code: 0", explained.stdout)
        self.assertEqual(self.lint().returncode, 2)


if __name__ == "__main__":
    unittest.main()
