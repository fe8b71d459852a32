#include <boost/test/unit_test.hpp>
#include <ipybox/sandbox_kit/detail/git_exclude.hpp>

#include "test_support.hpp"

namespace unit_git_exclude_tests {

using namespace ipybox;
using detail::exclude_pattern, detail::with_exclude_block;

const std::string block = "# ipybox: held while code runs here {\n/.envrc\n# } ipybox\n";

BOOST_AUTO_TEST_SUITE(git_exclude)

BOOST_AUTO_TEST_CASE(a_pattern_means_one_path_and_no_other) {
    BOOST_TEST(exclude_pattern(".mcp.json") == "/.mcp.json");
    BOOST_TEST(exclude_pattern("sub/a b*[c]?\\d") == "/sub/a\\ b\\*\\[c]\\?\\\\d");
}

BOOST_AUTO_TEST_CASE(the_block_comes_and_goes_and_the_rest_stays) {
    BOOST_TEST(with_exclude_block("", {}) == "");
    BOOST_TEST(with_exclude_block("*.o\n", {"/.envrc"}) == "*.o\n" + block);
    BOOST_TEST(with_exclude_block("*.o", {"/.envrc"}) == "*.o\n" + block);
    BOOST_TEST(with_exclude_block("*.o\n" + block + "*.a\n", {}) == "*.o\n*.a\n");
    BOOST_TEST(with_exclude_block(block + "*.a\n" + block, {"/.envrc"}) == "*.a\n" + block);
}

BOOST_AUTO_TEST_CASE(what_was_edited_is_not_dropped) {
    BOOST_TEST(with_exclude_block("# ipybox: held while code runs here {\n*.o\n", {}) == "*.o\n");
    BOOST_TEST(with_exclude_block("*.o\n# } ipybox\n*.a\n", {}) == "*.o\n# } ipybox\n*.a\n");
}

BOOST_AUTO_TEST_CASE(beginnings_without_end_are_dropped_however_many) {
    std::string text;
    for (int i = 0; i < 25'000; ++i) text += "# ipybox: held while code runs here {\n";
    BOOST_TEST(with_exclude_block(text + "*.o\n", {}) == "*.o\n");
}

BOOST_AUTO_TEST_CASE(only_placeholders_are_named) {
    const test::TemporaryDirectory directory;
    const auto top = directory.path();
    std::filesystem::create_directories(top / ".git/info");
    std::filesystem::create_directories(top / "sub");
    test::write_file(top / ".git/info/exclude", "*.o\n");
    // The last: lines of its own in the user's file.
    for (const char* name : {"sub/.envrc", "sub/.mcp.json", "sub/x\n# } ipybox"})
        test::write_file(top / name, "");
    const timespec stamp[2] = {{detail::placeholder_time, 0}, {detail::placeholder_time, 0}};
    for (const char* name : {"sub/.envrc", "sub/x\n# } ipybox"})
        BOOST_REQUIRE(::utimensat(AT_FDCWD, (top / name).c_str(), stamp, 0) == 0);
    // From below the repository's top.
    detail::exclude_from_git(top / "sub", {".envrc", ".mcp.json", "absent", "x\n# } ipybox"});
    BOOST_TEST(test::read_file(top / ".git/info/exclude") ==
               "*.o\n# ipybox: held while code runs here {\n/sub/.envrc\n# } ipybox\n");
    detail::exclude_from_git(top / "sub", {});
    BOOST_TEST(test::read_file(top / ".git/info/exclude") == "*.o\n");
    // A FIFO in its place would hang whoever opens it.
    std::filesystem::remove(top / ".git/info/exclude");
    BOOST_REQUIRE(::mkfifo((top / ".git/info/exclude").c_str(), 0600) == 0);
    detail::exclude_from_git(top / "sub", {".envrc"});
    BOOST_TEST(std::filesystem::is_fifo(top / ".git/info/exclude"));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace unit_git_exclude_tests
