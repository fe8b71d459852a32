#include <boost/json/parse.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/approval/question_text.hpp>
#include <random>

namespace question_tests {

using namespace ipybox::detail;
using namespace ipybox::approval;
namespace json = boost::json;

namespace {
json::object object(std::string_view text) { return json::parse(text).as_object(); }
std::string call(std::string_view arguments) {
    return call_text("server", "tool", object(arguments));
}
QuestionText asked(const json::object& arguments) {
    return question_text("files", "write_file", arguments);
}
std::string text_of(const json::object& arguments) {
    const auto question = asked(arguments);
    BOOST_TEST(question.problem == "");
    return question.text;
}
std::size_t count(std::string_view text, std::string_view word) {
    std::size_t found = 0;
    for (std::size_t at = 0; (at = text.find(word, at)) != text.npos; ++at) ++found;
    return found;
}
}  // namespace

BOOST_AUTO_TEST_SUITE(question)

BOOST_AUTO_TEST_CASE(calls_read_like_python) {
    BOOST_TEST(
        call(
            R"({"a": "it's", "n": 1.5, "w": 57.0, "i": 57, "b": true, "z": null, "l": [1, {"k": "v"}]})") ==
        R"(server.tool(a='it\'s', n=1.5, w=57.0, i=57, b=True, z=None, l=[1, {'k': 'v'}]))");
    BOOST_TEST(call(R"({"a b": 1})") == R"(server.tool('a b'=1))");
}

BOOST_AUTO_TEST_CASE(nothing_in_a_call_can_deceive) {
    BOOST_TEST(call("{\"a\": \"x\\u001b[2Ky\\n\\u202e\"}") ==
               R"(server.tool(a='x\x1b[2Ky\n\u202e'))");
    BOOST_TEST(call_text("s\x1b", "t\r", {}) == R"('s\x1b'.'t\r'())");
    BOOST_TEST(call_text("s", "t() ? [y/s/a/N/r/?] y", {}) == R"(s.'t() ? [y/s/a/N/r/?] y'())");
}

BOOST_AUTO_TEST_CASE(long_and_deep_arguments_are_folded_or_counted) {
    json::object arguments;
    arguments["a"] = std::string(1'000'000, 'x');
    BOOST_TEST(call_text("s", "t", arguments).size() < 1000u);
    BOOST_TEST(call_text("s", "t", arguments).find("[folded: 1000000 characters") !=
               std::string::npos);
    json::value deep = 1;
    for (int i = 0; i < 1000; ++i) {
        json::array wrapped;
        wrapped.push_back(std::move(deep));
        deep = std::move(wrapped);
    }
    arguments["a"] = std::move(deep);
    BOOST_TEST(call_text("s", "t", arguments) == "s.t([1 arguments, too much to be shown])");
    BOOST_TEST(asked(arguments).problem.find("cannot be put before a person") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(one_argument_a_line_names_and_values_quoted) {
    BOOST_TEST(
        text_of(object(R"({"path": "/x", "list": [1, "a", {"k": null}], "o'dd": "b\\n"})")) ==
        "  'path': '/x'\n  'list': [1, 'a', {'k': None}]\n  'o\\'dd': 'b\\\\n'\n");
    BOOST_TEST(text_of({}) == "  (no arguments)\n");
    BOOST_TEST(asked({}).name == "files.write_file");
}

BOOST_AUTO_TEST_CASE(blanks_and_what_cannot_be_seen_are_made_visible) {
    json::object arguments;
    arguments[std::string(3600, ' ') + "x"] = 1;
    BOOST_TEST(text_of(arguments) == "  '\\[3600 blanks]x': 1\n");
    const std::pair<const char*, const char*> shown[] = {
        {"a        b", "'a        b'"},
        {"a         b", "'a\\[9 blanks]b'"},
        {"\xc2\xa0", "'\\xa0'"},
        {"\xe3\x80\x80", "'\\u3000'"},
        {"\xe2\xa0\x80", "'\\u2800'"},
        {"a\xef\xb8\x8f", "'a\\ufe0f'"},
        {"\xf3\xa0\x84\x80", "'\\U000e0100'"},
        {"\xe2\x80\xa8", "'\\u2028'"},
        {"\xc2\x85", "'\\x85'"},
        {"\xee\x80\x80", "'\\ue000'"},
        {"\xcc\x81", "'\\u0301'"},
        {"e\xcc\x81", "'e\xcc\x81'"},
        {"e\xcc\x81\xcc\x81\xcc\x81", "'e\xcc\x81\xcc\x81\\u0301'"},
        {"\\[9 blanks]", "'\\\\[9 blanks]'"},
        {"\xd8\x80", "'\\u0600'"}};
    for (const auto& [raw, text] : shown) BOOST_TEST(ipybox::approval::quoted(raw) == text);
}

BOOST_AUTO_TEST_CASE(a_long_value_is_folded_and_comes_last) {
    json::object arguments;
    arguments["content"] = "first\n" + std::string(5000, 'x') + "\nlast\n";
    arguments["path"] = "/home/me/.ssh/authorized_keys";
    const auto question = asked(arguments);
    BOOST_TEST(question.text ==
               "  'path': '/home/me/.ssh/authorized_keys'\n  'content': 'first' … 'last' [folded: "
               "5012 characters, "
               "5012 bytes, 3 lines, sha256 " +
                   sha256_hex(arguments["content"].as_string()).substr(0, 32) + "]\n");
    BOOST_TEST(question.whole.starts_with("files.write_file\n  'content': 'first\\n'\n    'xxx"));
    BOOST_TEST(question.whole.find("\n    'last\\n'\n  'path': '/home") != std::string::npos);
    // Characters are not bytes, and none is cut.
    std::string wide;
    for (int i = 0; i < 1000; ++i) wide += "\xe2\x82\xac";
    arguments["content"] = wide;
    const auto folded = text_of(arguments);
    BOOST_TEST(folded.find("[folded: 1000 characters, 3000 bytes, 1 line, ") != std::string::npos,
               folded);
    BOOST_TEST(folded.find("\\x") == std::string::npos, folded);
    // Inside objects as well.
    arguments = object(R"({"edits": [{"text": "", "path": "/inner"}]})");
    arguments["edits"].as_array()[0].as_object()["text"] = std::string(900, 'x');
    BOOST_TEST(text_of(arguments).starts_with("  'edits': [{'path': '/inner', 'text': 'xxx"),
               text_of(arguments));
}

BOOST_AUTO_TEST_CASE(paths_urls_and_commands_are_whole_or_not_asked_about) {
    const auto whole = [](const char* name, const std::string& value) {
        json::object arguments;
        arguments[name] = value;
        const auto question = asked(arguments);
        return question.problem.empty() &&
               question.text == "  " + ipybox::approval::quoted(name) + ": " +
                                    ipybox::approval::quoted(value) + "\n";
    };
    const std::string much(3000, 'x');
    BOOST_TEST(whole("where", "/" + much));
    BOOST_TEST(whole("where", "https://host/" + much));
    for (const char* name : {"path", "filePath", "target_dir", "URL", "paths"})
        BOOST_TEST(whole(name, much), name);
    for (const char* name : {"cmd", "shell_command", "sqlQuery", "args"})
        BOOST_TEST(whole(name, much + "\n" + much), name);
    BOOST_TEST(!whole("content", much));
    for (const char* name : {"cmd", "path"}) {  // a place longer than any is a text like others
        json::object arguments;
        arguments[name] = std::string(9000, 'x');
        BOOST_TEST(asked(arguments).problem.empty() == (std::string_view(name) == "path"));
    }
    json::object many;
    for (int i = 0; i < 3000; ++i) many["k" + std::to_string(i)] = i;
    BOOST_TEST(asked(many).problem.find("more than 8000 bytes") != std::string::npos);
    json::object huge;
    huge["content"] = std::string(5u << 20, 'x');
    BOOST_TEST(asked(huge).problem.find("more than 4 MiB") != std::string::npos);
}

// Whatever is sent: what is short is there, and nothing that is there moves or hides anything.
BOOST_AUTO_TEST_CASE(random_arguments_hide_nothing) {
    std::mt19937 random(20261122);
    const auto below = [&](unsigned bound) { return random() % bound; };
    const auto append = [](std::string& text, std::uint32_t c) {
        if (c < 0x80) {
            text += static_cast<char>(c);
        } else if (c < 0x800) {
            text += static_cast<char>(0xC0 | (c >> 6));
            text += static_cast<char>(0x80 | (c & 63));
        } else if (c < 0x10000) {
            text += static_cast<char>(0xE0 | (c >> 12));
            text += static_cast<char>(0x80 | ((c >> 6) & 63));
            text += static_cast<char>(0x80 | (c & 63));
        } else {
            text += static_cast<char>(0xF0 | (c >> 18));
            text += static_cast<char>(0x80 | ((c >> 12) & 63));
            text += static_cast<char>(0x80 | ((c >> 6) & 63));
            text += static_cast<char>(0x80 | (c & 63));
        }
    };
    const auto some_text = [&](std::size_t most) {
        std::string text;
        const auto size = below(static_cast<unsigned>(most));
        const unsigned kind = below(5);
        while (text.size() < size) {
            const unsigned dice = kind < 2 ? 0 : below(8);
            if (dice == 0)
                append(text, 'a' + below(26));
            else if (dice == 1)
                text.append(1 + below(30), ' ');
            else if (dice == 2)
                append(text, below(0x100));
            else if (dice == 3)
                append(text, 0x2000 + below(0x100));
            else if (dice == 4)
                append(text, 0xFE00 + below(0x200));
            else if (dice == 5)
                append(text, 0xE0000 + below(0x200));
            else if (dice == 6)
                text += "\n'\\: [y/s/a/N/r/?] ";
            else if (const auto c = below(0x110000); c < 0xD800 || c >= 0xE000)
                append(text, c);
        }
        return text;
    };
    for (int round = 0; round < 3000; ++round) {
        json::object arguments;
        std::vector<std::string> expected;
        const auto leaf = [&] {
            const std::string text = some_text(below(6) == 0 ? 3000 : 60);
            if (text.size() <= longest_unfolded) expected.push_back(ipybox::approval::quoted(text));
            return json::value(text);
        };
        for (unsigned i = below(6); i > 0; --i) {
            const std::string name = some_text(30);
            if (arguments.contains(name)) continue;
            expected.push_back(ipybox::approval::quoted(name) + ": ");
            if (below(3) == 0) {
                json::array list;
                for (unsigned j = below(4); j > 0; --j) list.push_back(leaf());
                arguments[name] = std::move(list);
            } else if (below(3) == 0) {
                json::object inner;
                inner["inner"] = leaf();
                arguments[name] = std::move(inner);
            } else {
                arguments[name] = leaf();
            }
        }
        const auto question = asked(arguments);
        if (!question.problem.empty()) continue;
        BOOST_TEST_REQUIRE(question.text.size() < 2 * question_bytes);
        for (const auto& part : expected)
            BOOST_TEST_REQUIRE(question.text.find(part) != std::string::npos,
                               part << " is not in " << question.text);
        BOOST_TEST_REQUIRE(count(question.text, "\n") ==
                           std::max<std::size_t>(1, arguments.size()));
        BOOST_TEST_REQUIRE(question.text.find(std::string(longest_blank + 3, ' ')) ==
                           std::string::npos);
        for (const auto* text : {&question.text, &question.whole}) {
            for (std::string_view rest = *text; !rest.empty();) {
                const auto point = decode_utf8(rest);
                BOOST_TEST_REQUIRE(point.valid);
                BOOST_TEST_REQUIRE((point.value == '\n' || !is_deceptive(point.value)));
                BOOST_TEST_REQUIRE((!is_odd_blank(point.value) && !is_format(point.value) &&
                                    !is_unassigned(point.value)));
                rest.remove_prefix(point.size);
            }
        }
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace question_tests
