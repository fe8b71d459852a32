// How a question looks on a terminal.
#include <boost/test/unit_test.hpp>
#include <ipybox/approval/detail/prompt.hpp>
#include <ipybox/approval/question_text.hpp>
#include <string>

namespace prompt_tests {

using namespace ipybox::approval;
using namespace ipybox::detail;
namespace json = boost::json;

// Without the sequences that set colours.
std::string without_colors(std::string text) {
    for (std::size_t at = 0; (at = text.find("\033[", at)) != text.npos;)
        text.erase(at, text.find('m', at) + 1 - at);
    return text;
}

BOOST_AUTO_TEST_SUITE(prompt)

BOOST_AUTO_TEST_CASE(hints_are_words_and_nothing_of_the_servers_text) {
    BOOST_TEST(hints_text({}) == "");
    BOOST_TEST(hints_text({{"readOnlyHint", true}, {"openWorldHint", false}}) ==
               "read-only, not open-world");
    BOOST_TEST(hints_text({{"destructiveHint", true}, {"readOnlyHint", false}}) ==
               "not read-only, destructive");
    BOOST_TEST(hints_text({{"title", "harmless\033[2J"}, {"readOnlyHint", "yes"}}) == "");
    BOOST_TEST(hints_line({}, true) == "");
    BOOST_TEST(hints_line({{"readOnlyHint", true}}, false) ==
               "  the server says of itself: read-only\n");
    BOOST_TEST(hints_line({{"destructiveHint", true}}, true) ==
               "  the server says of itself: \033[1;31mdestructive\033[m\n");
}

BOOST_AUTO_TEST_CASE(colours_are_around_a_question_and_change_nothing_in_it) {
    json::object arguments;
    arguments["path"] = "/x'y\033[2J\n[folded: nothing]";
    arguments["list"] = json::array{"a: 'b'", 1};
    arguments["content"] = std::string(5000, 'x');
    const auto question = question_text("files", "write_file", arguments);
    BOOST_TEST(question.problem == "");
    const std::string text = "Question 1: " + question.name + '\n' + question.text;
    const auto colored = colored_question(text);
    BOOST_TEST(without_colors(colored) == text);
    BOOST_TEST(colored.starts_with(
        "\033[1mQuestion 1: files.write_file\033[m\n  \033[36m'path'\033[m: '"));
    // A value has no colour of its own, whatever it says.
    BOOST_TEST(colored.find("[2J\\n[folded: nothing]'\n") != colored.npos, colored);
    BOOST_TEST(colored.find("\033[36m'list'\033[m: ['a: \\'b\\'', 1]\n") != colored.npos, colored);
    BOOST_TEST(colored.find("\033[33m[folded: 5000 characters, ") != colored.npos, colored);
    // Also where quotes are cut off, which no question does.
    for (const char* odd : {"", "x", "x\n'", "x\n'\\", "x\n[folded: ", "\n\n"})
        BOOST_TEST(without_colors(colored_question(odd)) == odd);
}

BOOST_AUTO_TEST_CASE(the_time_left_is_at_the_end_of_the_line_or_on_its_own) {
    BOOST_TEST(countdown_text(57, true, 80, 30) == "\0337\033[64G      no in 57 s\0338");
    BOOST_TEST(counts_in_place(countdown_text(57, true, 80, 30)));
    for (const auto& text : {countdown_text(55, false, 80, 30), countdown_text(55, true, 0, 30),
                             countdown_text(55, true, 61, 30)}) {
        BOOST_TEST(text == "\n[without an answer: no in 55 s] ");
        BOOST_TEST(!counts_in_place(text));
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace prompt_tests
