"""scripts/doxygen_filter.py: what Doxygen gets to read of a header."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

FILTER = Path(__file__).resolve().parents[2] / "scripts/doxygen_filter.py"

HEADER = r'''#pragma once
// What this file holds: <tags>, @commands and `code`.
#include <string>

namespace ipybox {

// Describes the struct,
// in two lines.
// Example: thing/main.cpp [Thing]
struct Options {
    std::string name = "// none";  // a name
    int size = 1;  // how much,
                   // and of what
};

namespace detail {
// Nobody's business.
inline int hidden() { return 1; }
}  // namespace detail

class Thing {
    int first_;

public:
    // Makes one.
    explicit Thing(int size) : size_(size), text_{"}"} {
        // Not for readers.
        start();
    }
    struct Schema { static constexpr const char* text = R"({"a": "// {"})"; };  // a schema
    // Does it.
    void run(std::string how = {});

private:
    // Nor this.
    void start();
    int size_;
};

// Defined here, described above.
inline void Thing::run(std::string) {
    if (size_ == '"') return;
}

// Free.
template <class T>
T twice(T value) {
    return value + value;
}

}  // namespace ipybox
'''


class FilterTest(unittest.TestCase):
    def setUp(self):
        with tempfile.NamedTemporaryFile("w", suffix=".hpp") as file:
            file.write(HEADER)
            file.flush()
            run = subprocess.run([sys.executable, FILTER, file.name], check=True, capture_output=True, text=True)
        self.lines = run.stdout.split("\n")

    def test_comments_describe_what_they_stand_at(self):
        for line in (r"/// What this file holds: \<tags\>, \@commands and <code>code</code>.",
                     "/// Describes the struct,", "/// in two lines.", '    std::string name = "// none";  ///< a name',
                     "    int size = 1;  ///< how much,", "                   ///< and of what",
                     r"/// \snippet thing/main.cpp Thing", "    /// Makes one.", "    /// Does it.", "    void run(std::string how = {});", "/// Free."):
            self.assertIn(line, self.lines)
        self.assertEqual(self.lines[0], "/// \\file")

    def test_what_is_not_public_is_left_out(self):
        text = "\n".join(self.lines)
        for word in ("Nobody", "hidden", "first_", "Not for readers", "start", "Nor this", "int size_", "/// Defined here",
                     "Thing::run", "value + value"):
            self.assertNotIn(word, text)

    def test_lines_keep_their_numbers(self):
        self.assertEqual(len(self.lines), len(HEADER.split("\n")))
        for line in ("namespace ipybox {", "struct Options {", "class Thing {", "T twice(T value) {"):
            self.assertEqual(self.lines.index(line), HEADER.split("\n").index(line))
