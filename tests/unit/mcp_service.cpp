#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/json/serialize.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/executor/service.hpp>
#include <ipybox/mcp/result_text.hpp>

#include "test_support.hpp"

namespace mcp_service_tests {

using namespace ipybox;
using namespace ipybox::detail;
using namespace ipybox::mcp;
using namespace std::string_view_literals;
namespace fs = std::filesystem;

namespace {
// Stands in line, is served when released, and notes in which order that was.
struct Guest {
    Guest(asio::io_context& context, executor::WaitingLine& line, std::string& order, char name)
        : release(context.get_executor()) {
        asio::co_spawn(context, stay(*this, line, order, name),
                       asio::bind_cancellation_slot(gone.slot(), asio::detached));
    }
    static awaitable<void> stay(Guest& self, executor::WaitingLine& line, std::string& order,
                                char name) {
        executor::WaitingLine::Place place(line);
        co_await place.turn();
        order += name;
        while (!self.released) co_await self.release.wait();
    }
    void leave() {
        released = true;
        release.notify();
    }
    Event release;
    bool released = false;
    asio::cancellation_signal gone;
};
}  // namespace

BOOST_AUTO_TEST_SUITE(mcp_service)

BOOST_AUTO_TEST_CASE(text_is_cut_between_characters) {
    const auto cut = [](std::string_view text, std::size_t characters, std::size_t bytes) {
        return std::string(text.substr(0, text_fits(text, characters, bytes)));
    };
    BOOST_TEST(cut("añ€😀z", 4, 1000) == "añ€😀");
    BOOST_TEST(cut("añ€😀z", 3, 1000) == "añ€");
    BOOST_TEST(cut("añ€😀z", 1000, 9) == "añ€");  // 1 + 2 + 3, and four more do not fit
    BOOST_TEST(cut("añ€😀z", 1000, 10) == "añ€😀");
    BOOST_TEST(cut("añ€😀z", 0, 1000) == "");
    BOOST_TEST(cut("", 10, 10) == "");
    // What JSON makes longer counts as long as it gets.
    for (const auto text : {"a\"b\\c\nd\x01\x1f", "\x7f/\t\r\b\f"})
        BOOST_TEST(text_fits(text, 1000, json::serialize(json::string(text)).size() - 2) ==
                   std::strlen(text));
    BOOST_TEST(cut("a\x01", 1000, 6) == "a");
    BOOST_TEST(cut("\x80\x80z", 1, 1000) == "\x80\x80");  // no UTF-8: not worse than a character
}

BOOST_AUTO_TEST_CASE(text_in_pieces_is_stripped_and_kept_up_to_its_limit) {
    struct {
        std::size_t most;
        std::vector<std::string_view> pieces;
        std::string_view text;
    } const cases[] = {
        {100, {}, ""},
        {100, {" \n", "\t"}, ""},
        {100, {"\n", " a ", "\n", "b\v", " \n"}, "a \nb"},
        {3, {"  abc"}, "abc"},
        {3, {"  ab", "c \n", "  "}, "abc"},  // only white space is missing
        {3, {"a  ", " ", "\n"}, "a"},
        {3, {"a  ", " ", "b"}, "a  "},
        {3, {"abcd", "e"}, "abc"},
        {0, {"a"}, ""},
    };
    for (const auto& one : cases) {
        StrippedText text(one.most);
        for (const auto piece : one.pieces) text.add(piece);
        BOOST_TEST(text.take() == one.text);
    }
}

BOOST_AUTO_TEST_CASE(images_are_what_they_say) {
    BOOST_TEST(image_type("\x89PNG\r\n\x1a\n...."sv) == "image/png");
    BOOST_TEST(image_type("\xFF\xD8\xFF\xE0"sv) == "image/jpeg");
    BOOST_TEST(image_type("RIFF\x10\0\0\0WEBPVP8 "sv) == "image/webp");
    for (const auto other : {""sv, "\x89PNG"sv, "<svg>"sv, "RIFF\x10\0\0\0WAVEfmt "sv, "GIF86a"sv})
        BOOST_TEST(image_type(other) == "");
}

BOOST_AUTO_TEST_CASE(paths_stay_in_the_workspace) {
    BOOST_TEST(workspace_path("a/./b//c") == fs::path("a/b/c"));
    BOOST_TEST(workspace_path("..a") == fs::path("..a"));
    for (const auto bad : {""sv, "."sv, "/etc/passwd"sv, "a/../b"sv, ".."sv, "a\0b"sv})
        BOOST_CHECK_THROW(workspace_path(bad), Error);
}

BOOST_AUTO_TEST_CASE(a_line_serves_in_order_and_forgets_who_leaves) {
    asio::io_context context;
    const auto settle = [&context] {
        context.restart();
        while (context.poll_one() > 0) {
        }
    };
    executor::WaitingLine line(context.get_executor(), 2);
    std::string order;
    {
        Guest a(context, line, order, 'a'), b(context, line, order, 'b'),
            c(context, line, order, 'c');
        Guest d(context, line, order, 'd'), e(context, line, order, 'e');
        settle();
        BOOST_TEST(order == "ab");
        b.leave();
        settle();
        BOOST_TEST(order == "abc");
        d.gone.emit(asio::cancellation_type::terminal);
        settle();
        a.leave();
        settle();
        BOOST_TEST(order == "abce");
        c.leave();
        e.leave();
        settle();
    }
    BOOST_TEST(line.empty());
}

BOOST_AUTO_TEST_CASE(importable_tools_are_read_from_files_and_links_are_not_followed) {
    const test::TemporaryDirectory workspace, outside;
    const auto put = [](const fs::path& path, const std::string& text) {
        fs::create_directories(path.parent_path());
        test::write_file(path, text);
    };
    put(workspace.path() / "mcptools/own/__init__.py",
        "'''Tools of own: some\n\nadd: Adds numbers.\nadd_file: Puts a file.\nno tool\n'''\nx: "
        "int");
    put(workspace.path() / "gentools/reports/longest/api.py",
        "'''\nFinds the longest report.\n'''");
    put(workspace.path() / "gentools/reports/plain/api.py", "def run(): ...");
    put(outside.path() / "__init__.py", "'''Title\n\nsecret: Of another.'''");
    fs::create_directory_symlink(outside.path(), workspace.path() / "mcptools/other");
    const auto names = [](const std::vector<ImportableTool>& tools) {
        std::string all;
        for (const auto& tool : tools)
            all += tool.package + "." + tool.module + "=" + tool.summary + ";";
        return all;
    };
    const auto all = importable_tools(workspace.path());
    BOOST_TEST(
        names(all) ==
        "mcptools.own.add=Adds numbers.;mcptools.own.add_file=Puts a file.;"
        "gentools.reports.longest.api=Finds the longest report.;gentools.reports.plain.api=;");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace mcp_service_tests
