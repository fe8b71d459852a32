#include <sys/stat.h>

#include <boost/test/unit_test.hpp>
#include <ipybox/approval/granted_rules.hpp>
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
            rules.list();
        } catch (const Error& error) {
            BOOST_TEST((error.code() == errc::bad_config));
            return error.detail();
        }
        return "none";
    }
    void add(const ToolCall& made) const {
        rules.add(rule_allowing(made), approval::ToolBinding::of(made, true));
    }
    bool allows(const RememberedRules& some, const ToolCall& made) const {
        const auto found = GrantedRules(some).find(made);
        return found && found->verdict == Verdict::allow;
    }
    test::TemporaryDirectory directory;
    std::filesystem::path file = directory.path() / "settings" / "ipybox" / "always.json";
    RememberedRules rules{file};
};
}  // namespace

BOOST_FIXTURE_TEST_SUITE(remembered_rules, RememberedFixture)

BOOST_AUTO_TEST_CASE(what_is_added_is_allowed_by_others_too) {
    BOOST_TEST(!allows(rules, call("files", "read")));
    add(call("files", "read"));
    add(call("git", "log"));
    const RememberedRules other(file);
    BOOST_TEST(allows(other, call("files", "read")));
    BOOST_TEST(allows(other, call("git", "log")));
    BOOST_TEST(!allows(other, call("files", "write")));
    BOOST_TEST(!allows(other, call("git", "read")));
    BOOST_TEST(!allows(other, call("files", "read", CallOrigin::shell)));
    struct stat status{};
    BOOST_TEST(::stat(file.c_str(), &status) == 0);
    BOOST_TEST((status.st_mode & 0777) == 0600u);
    BOOST_TEST(::stat(file.parent_path().c_str(), &status) == 0);
    BOOST_TEST((status.st_mode & 0777) == 0700u);
}

BOOST_AUTO_TEST_CASE(a_name_is_no_pattern) {
    for (const char* name : {"*", "?????", "re*d", "\\*"}) {
        add(call("files", name));
        BOOST_TEST(allows(rules, call("files", name)));
    }
    BOOST_TEST(!allows(rules, call("files", "write")));
    BOOST_TEST(!allows(rules, call("files", "read")));
}

BOOST_AUTO_TEST_CASE(a_command_is_remembered_word_by_word) {
    auto command = call("ipybox", "shell", CallOrigin::shell);
    add(command);
    BOOST_TEST(allows(rules, command));
    command.arguments["cmd"] = "ls; rm -rf /";
    BOOST_TEST(!allows(rules, command));
    command.arguments["cmd"] = "ls";
    command.arguments["more"] = 1;
    BOOST_TEST(!allows(rules, command));
}

BOOST_AUTO_TEST_CASE(a_file_of_others_or_with_a_mistake_allows_nothing) {
    add(call("files", "read"));
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
    BOOST_TEST(!allows(rules, call("files", "read")));
    std::filesystem::rename(file, directory.path() / "other");
    std::filesystem::create_symlink(directory.path() / "other", file);
    BOOST_TEST(problem() != "none");
    const RememberedRules nowhere{std::filesystem::path()};
    const auto made = call("a", "b");
    BOOST_CHECK_EXCEPTION(nowhere.add(rule_allowing(made), approval::ToolBinding::of(made, true)),
                          Error, [](const Error& error) {
                              return error.detail().find("XDG_CONFIG_HOME") != std::string::npos;
                          });
}

BOOST_AUTO_TEST_CASE(rules_are_forgotten_by_number) {
    for (const char* name : {"one", "two", "three", "four"}) add(call("files", name));
    rules.forget({1, 3});
    BOOST_TEST(rules.list().size() == 2u);
    BOOST_TEST(!allows(rules, call("files", "one")));
    BOOST_TEST(allows(rules, call("files", "two")));
    BOOST_TEST(!allows(rules, call("files", "three")));
    BOOST_TEST(allows(rules, call("files", "four")));
    for (const std::size_t number : {0u, 3u})
        BOOST_CHECK_EXCEPTION(rules.forget({1, number}), Error, [&](const Error& error) {
            return error.code() == errc::bad_argument &&
                   error.detail().find("no rule " + std::to_string(number)) != std::string::npos;
        });
    BOOST_TEST(rules.list().size() == 2u);
}

BOOST_AUTO_TEST_CASE(a_binding_with_a_mistake_is_refused_and_not_written_over) {
    for (const char* granted :
         {"1", "{}", R"({"server": 1, "tools": {}})", R"({"server": "", "tools": {"a": {}}})",
          R"({"server": "", "tools": {"a": {"hash": 1}}})",
          R"({"server": "", "tools": {}, "more": 1})"}) {
        const auto text =
            R"({"rules": [{"then": "allow", "granted": )" + std::string(granted) + "}]}";
        std::filesystem::create_directories(file.parent_path());
        test::write_file(file, text);
        std::filesystem::permissions(file, std::filesystem::perms(0600));
        BOOST_TEST(problem().find("rules/0/granted") != std::string::npos, granted);
        BOOST_CHECK_THROW(add(call("a", "b")), Error);
        BOOST_TEST(test::read_file(file) == text);
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace remembered_rules_tests
