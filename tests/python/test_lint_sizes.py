"""scripts/lint_sizes.py measures files and functions as a reader would."""
import contextlib
import importlib.util
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "lint_sizes.py"
spec = importlib.util.spec_from_file_location("lint_sizes", SCRIPT)
lint = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lint)


class Functions(unittest.TestCase):
    def check(self, text: str, *wanted: tuple[str, int, int]) -> None:
        with self.subTest(text):
            self.assertEqual(list(lint.functions(text)), list(wanted))

    def test_where_they_stand(self):
        self.check("int f() {\n  return 1;\n}\n", ("f", 1, 3))
        self.check("namespace a::b {\nvoid f() {}\n}  // namespace\nvoid g() {}\n", ("f", 2, 2), ("g", 4, 4))
        self.check("namespace {\nvoid f() {\n}\n}\n", ("f", 2, 3))
        self.check("class A final : public B<int> {\npublic:\n  void f() const noexcept override {\n  }\n};\n",
                   ("f", 3, 4))
        self.check("struct A {\n  enum class K : char { a, b };\n  K k{K::a};\n  ~A() {\n  }\n};\n", ("~A", 4, 5))
        self.check("template <class T>\nT A<T>::f(const T& t) {\n  return t;\n}\n", ("f", 1, 4))
        self.check("IPYBOX_DECL struct stat A::f() {\n}\n", ("A::f", 1, 2))

    def test_constructors(self):
        self.check("A::A(int x)\n  : a_{x}, b_({1, 2}) {\n  go();\n}\nvoid f() {}\n", ("A::A", 1, 4), ("f", 5, 5))
        self.check("A::A(int x)\n  : a_{x}\n{\n}\n", ("A::A", 1, 4))

    def test_what_is_inside_belongs_to_them(self):
        self.check("void f() {\n  const auto g = [&](int x) {\n  };\n  struct S { void h() {} };\n}\n", ("f", 1, 5))
        self.check("void f() {\n  if (a) {\n  }\n}\nvoid g() {\n}\n", ("f", 1, 4), ("g", 5, 6))

    def test_text_is_no_code(self):
        self.check('void f() {\n  a("}");  // }\n  b(\'}\', R"x(}})")})x"); /* } */\n}\n', ("f", 1, 4))
        self.check("void f() {\n  g(1'000);\n}\nvoid h() {\n  g('{');\n}\n", ("f", 1, 3), ("h", 4, 6))
        self.check("#define X(a) { \\\n  a\n// A comment.\n\nvoid f() {\n}\n", ("f", 5, 6))

    def test_values_are_none(self):
        self.check("constexpr int a[] = {1, 2};\nconst B b{f(1)};\nstd::string s;\n")


class Limits(unittest.TestCase):
    def faults_of(self, **files: tuple[str, str]) -> list[str]:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            for name, text in files.values():
                Path(name).parent.mkdir(parents=True, exist_ok=True)
                Path(name).write_text(text, encoding="utf-8")
            return [fault for fault in lint.faults() if "no exception" not in fault]

    def test_files(self):
        for name, most in (("include/ipybox/a.hpp", 500), ("include/ipybox/x/impl/a.ipp", 800), ("plugins/k/a.cpp", 800),
                           ("python/ipybox_kernel/a.py", 800)):
            with self.subTest(name):
                self.assertEqual(self.faults_of(a=(name, "\n" * most)), [])
                self.assertEqual(self.faults_of(a=(name, "\n" * (most + 1))),
                                 [f"{name}: file of {most + 1} lines; at most {most}"])

    def test_functions(self):
        for name, head, line, tail in (("app/a.cpp", "void f() {\n", "  g();\n", "}\n"),
                                       ("python/ipybox_kernel/a.py", "def f():\n", "    g()\n", "    h()\n")):
            with self.subTest(name):
                self.assertEqual(self.faults_of(a=(name, head + line * 98 + tail)), [])
                self.assertEqual(self.faults_of(a=(name, head + line * 99 + tail)),
                                 [f"{name}:1: f of 101 lines; at most 100"])

    def test_elsewhere_is_not_the_core(self):
        self.assertEqual(self.faults_of(a=("tests/unit/a.cpp", "\n" * 2000)), [])

    def test_an_exception_that_is_none_is_told(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            self.assertEqual(len(list(lint.faults())), len(lint.LONGER_FILES))


if __name__ == "__main__":
    unittest.main()
