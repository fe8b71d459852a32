#include <sys/stat.h>

#include <boost/test/unit_test.hpp>
#include <ipybox/approval/remembered_rules.hpp>

#include "test_support.hpp"

namespace remembered_rules_tests {

using namespace ipybox;

namespace {
struct RememberedFixture {
    ToolCall call(std::string server, std::string tool, CallOrigin origin = CallOrigin::mcp) {
        ToolCall made;
        made.server = std::move(server);
        made.tool = std::move(tool);
        made.origin = origin;
        made.arguments["cmd"] = "ls";
        return made;
    }
    std::string problem() {
        try {
            rules.allow(call("files", "read"));
        } catch (const Error& error) {
            BOOST_TEST((error.code() == errc::bad_config));
            return error.detail();
        }
        return "none";
    }
    test::TemporaryDirectory directory;
    std::filesystem::path file = directory.path() / "settings" / "ipybox" / "always.json";
    RememberedRules rules{file};
};
}  // namespace

BOOST_FIXTURE_TEST_SUITE(remembered_rules, RememberedFixture)

BOOST_AUTO_TEST_CASE(what_is_added_is_allowed_by_others_too) {
    BOOST_TEST(!rules.allow(call("files", "read")));
    rules.add(call("files", "read"));
    rules.add(call("git", "log"));
    const RememberedRules other(file);
    BOOST_TEST(other.allow(call("files", "read")));
    BOOST_TEST(other.allow(call("git", "log")));
    BOOST_TEST(!other.allow(call("files", "write")));
    BOOST_TEST(!other.allow(call("git", "read")));
    BOOST_TEST(!other.allow(call("files", "read", CallOrigin::shell)));
    struct stat status{};
    BOOST_TEST(::stat(file.c_str(), &status) == 0);
    BOOST_TEST((status.st_mode & 0777) == 0600u);
    BOOST_TEST(::stat(file.parent_path().c_str(), &status) == 0);
    BOOST_TEST((status.st_mode & 0777) == 0700u);
}

BOOST_AUTO_TEST_CASE(a_name_is_no_pattern) {
    for (const char* name : {"*", "?????", "re*d", "\\*"}) {
        rules.add(call("files", name));
        BOOST_TEST(rules.allow(call("files", name)));
    }
    BOOST_TEST(!rules.allow(call("files", "write")));
    BOOST_TEST(!rules.allow(call("files", "read")));
}

BOOST_AUTO_TEST_CASE(a_command_is_remembered_word_by_word) {
    auto command = call("ipybox", "shell", CallOrigin::shell);
    rules.add(command);
    BOOST_TEST(rules.allow(command));
    command.arguments["cmd"] = "ls; rm -rf /";
    BOOST_TEST(!rules.allow(command));
    command.arguments["cmd"] = "ls";
    command.arguments["more"] = 1;
    BOOST_TEST(!rules.allow(command));
}

BOOST_AUTO_TEST_CASE(a_file_of_others_or_with_a_mistake_allows_nothing) {
    rules.add(call("files", "read"));
    BOOST_TEST(problem() == "none");
    ::chmod(file.c_str(), 0620);
    BOOST_TEST(problem().find("only you can write") != std::string::npos);
    ::chmod(file.c_str(), 0600);
    test::write_file(file, R"({"rules": [{"then": "alow"}]})");
    BOOST_TEST(problem().starts_with(file.string() + ", rules/0/then: accepted"));
    for (const char* text : {"", "[]", "{}", R"({"rules": 5})", R"({"rules": [], "more": 1})"}) {
        test::write_file(file, text);
        BOOST_TEST(problem() != "none");
    }
    test::write_file(file, R"({"rules": []})");
    BOOST_TEST(!rules.allow(call("files", "read")));
    std::filesystem::rename(file, directory.path() / "other");
    std::filesystem::create_symlink(directory.path() / "other", file);
    BOOST_TEST(problem() != "none");
    BOOST_CHECK_EXCEPTION(RememberedRules(std::filesystem::path()).add(call("a", "b")), Error,
                          [](const Error& error) {
                              return error.detail().find("XDG_CONFIG_HOME") != std::string::npos;
                          });
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace remembered_rules_tests
