#include <sys/resource.h>
#include <sys/stat.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/test/unit_test.hpp>
#include <csignal>
#include <ipybox/approval/audit_log.hpp>

#include "test_support.hpp"

namespace audit_log_tests {

using namespace ipybox;

namespace {
// Without those that are about the log itself.
std::vector<json::object> records(const std::filesystem::path& file) {
    std::vector<json::object> all;
    std::istringstream lines(test::read_file(file));
    for (std::string line; std::getline(lines, line);) {
        boost::system::error_code error;
        const json::value value = json::parse(line, error);
        if (error) continue;
        const std::string_view event(value.as_object().at("event").as_string());
        bool of_log = false;
        for (const auto* name : {"chain", "continued", "opened", "head", "torn", "lost"})
            of_log = of_log || event == name;
        if (!of_log) all.push_back(value.as_object());
    }
    return all;
}
std::string_view text(const json::object& record, const char* key) {
    return record.at(key).as_string();
}

json::object event(std::string_view name) {
    json::object record;
    record["event"] = name;
    return record;
}

struct AuditFixture {
    ToolCall call() {
        ToolCall made;
        made.server = "files";
        made.tool = "write";
        made.session = "s";
        made.id = "00000000000000c1";
        made.execution = "00000000000000e3";
        made.arguments["path"] = "/x";
        return made;
    }
    test::TemporaryDirectory directory;
    std::filesystem::path file = directory.path() / "audit.jsonl";
    Secrets secrets;
};

// Files of this process cannot grow beyond a size meanwhile: a full disk without a disk.
class SizeLimit {
public:
    explicit SizeLimit(rlim_t bytes) {
        ::getrlimit(RLIMIT_FSIZE, &before_);
        const rlimit now{bytes, before_.rlim_max};
        ::setrlimit(RLIMIT_FSIZE, &now);
    }
    ~SizeLimit() {
        ::setrlimit(RLIMIT_FSIZE, &before_);
        std::signal(SIGXFSZ, signal_);
    }

private:
    rlimit before_{};
    void (*signal_)(int) = std::signal(SIGXFSZ, SIG_IGN);
};
}  // namespace

BOOST_FIXTURE_TEST_SUITE(audit_log, AuditFixture)

BOOST_AUTO_TEST_CASE(a_file_that_only_grows_and_nobody_else_reads) {
    test::write_file(file, "{\"event\":\"old\"}\n");
    ::chmod(file.c_str(), 0644);
    {
        AuditOptions options;
        options.fsync = true;
        AuditLog log(file, options);
        log.write(event("one"));
    }
    AuditLog(file).write(event("two"));
    const auto all = records(file);
    BOOST_TEST_REQUIRE(all.size() == 3u);
    BOOST_TEST(text(all[0], "event") == "old");
    BOOST_TEST(text(all[2], "event") == "two");
    BOOST_TEST(text(all[1], "time").size() == std::string_view("2026-01-01T00:00:00.000Z").size());
    struct stat status{};
    BOOST_TEST(::stat(file.c_str(), &status) == 0);
    BOOST_TEST((status.st_mode & 0777) == 0600u);
}

BOOST_AUTO_TEST_CASE(not_in_the_workspace_nor_through_a_link) {
    const auto refused = [&](const std::filesystem::path& path, AuditOptions options, errc code) {
        BOOST_CHECK_EXCEPTION(AuditLog(path, options), Error,
                              [&](const Error& error) { return error.code() == code; });
    };
    AuditOptions options;
    options.workspace = directory.path();
    refused(file, options, errc::bad_config);
    std::filesystem::create_directory(directory.path() / "sub");
    refused(directory.path() / "sub" / "a", options, errc::bad_config);
    refused(directory.path() / "sub" / ".." / "a", options, errc::bad_config);
    options.workspace = directory.path() / "sub";
    AuditLog beside(file, options);
    std::filesystem::create_directory_symlink(directory.path() / "sub", directory.path() / "link");
    refused(directory.path() / "link" / "a", options, errc::bad_config);
    std::filesystem::create_symlink(file, directory.path() / "other");
    refused(directory.path() / "other", {}, errc::io_error);
    refused(directory.path() / "absent" / "a", {}, errc::io_error);
    options.inside_workspace = true;
    AuditLog inside(directory.path() / "sub" / "a", options);
}

BOOST_AUTO_TEST_CASE(secrets_are_masked_by_name_and_by_value) {
    for (const char* name : {"password", "db_password", "apiKey", "api_key", "X-Auth-Token",
                             "Authorization", "KEY", "client-secret", "myToken"})
        BOOST_TEST(config::names_a_secret(name), name);
    for (const char* name :
         {"path", "monkey", "keyboard", "tokens", "max_tokens", "author", "passage", ""})
        BOOST_TEST(!config::names_a_secret(name), name);
    secrets.add("s3cr3t-value");
    ToolCall made = call();
    made.arguments["password"] = "hunter2";
    made.arguments["nested"] =
        json::parse(R"([{"token": {"a": 1}, "text": "with s3cr3t-value inside", "key": null}])");
    made.arguments["s3cr3t-value"] = 1;
    made.arguments["long"] = std::string(100'000, 'x');
    {
        const auto log = std::make_shared<AuditLog>(file);
        AuditedCall audited(log, made, secrets);
        Decision decision(Verdict::allow, "because s3cr3t-value");
        decision.by = "rules: rule 1";
        audited.decided(decision);
        audited.ended("error", "s3cr3t-value is wrong");
    }
    const auto text_of_file = test::read_file(file);
    BOOST_TEST(text_of_file.find("s3cr3t") == std::string::npos);
    BOOST_TEST(text_of_file.find("hunter2") == std::string::npos);
    BOOST_TEST(text_of_file.size() < 20'000u);
    const auto all = records(file);
    BOOST_TEST_REQUIRE(all.size() == 2u);
    const auto& arguments = all[0].at("arguments").as_object();
    BOOST_TEST(text(arguments, "password") == "[hidden]");
    BOOST_TEST(json::serialize(arguments.at("nested")) ==
               R"([{"token":"[hidden]","text":"with [hidden] inside","key":null}])");
    BOOST_TEST(text(arguments, "path") == "/x");
    BOOST_TEST(text(all[0], "verdict") == "allow");
    BOOST_TEST(text(all[0], "by") == "rules: rule 1");
    BOOST_TEST(text(all[0], "origin") == "mcp");
    BOOST_TEST(text(all[0], "execution") == "00000000000000e3");
    BOOST_TEST(text(all[0], "call") == "00000000000000c1");
    BOOST_TEST(all[0].at("call") == all[1].at("call"));
    BOOST_TEST(text(all[1], "outcome") == "error");
    BOOST_TEST(all[1].at("duration_ms").is_number());
}

BOOST_AUTO_TEST_CASE(padding_removes_nothing_from_the_record) {
    const auto recorded = [&](json::value padding) {
        std::filesystem::remove(file);
        ToolCall made = call();
        made.arguments.clear();
        made.arguments["padding"] = std::move(padding);
        made.arguments["path"] = "/etc/shadow";
        made.arguments["nested"] = json::parse(R"({"deep": [{"path": "/root", "n": 7}]})");
        AuditedCall(std::make_shared<AuditLog>(file), made, secrets)
            .decided(Decision(Verdict::deny));
        const auto arguments = records(file).at(0).at("arguments").as_object();
        BOOST_TEST(text(arguments, "path") == "/etc/shadow");
        BOOST_TEST(json::serialize(arguments.at("nested")) ==
                   R"({"deep":[{"path":"/root","n":7}]})");
        return arguments.at("padding");
    };
    const std::string long_text(300'000, 'x');
    const auto one = recorded(json::value(long_text));
    BOOST_TEST(one.as_string() == std::string(16 * 1024, 'x') + "… [300000 bytes, sha256 " +
                                      detail::sha256_hex(long_text) + "]");
    std::string wide;
    for (int i = 0; i < 10'000; ++i) wide += "\xe2\x82\xac";
    BOOST_TEST(recorded(json::value(wide))
                   .as_string()
                   .starts_with(wide.substr(0, 16 * 1024 / 3 * 3) + "… [30000 bytes, "));
    json::array numbers, texts;
    for (int i = 0; i < 100'000; ++i) numbers.emplace_back(i);
    const auto many = recorded(numbers);
    BOOST_TEST(many.as_array().size() == 101u);
    BOOST_TEST(many.as_array().back().as_string().starts_with("… [99900 more numbers, sha256 "));
    for (int i = 0; i < 1000; ++i)
        texts.emplace_back(std::to_string(i) + long_text.substr(0, 1000));
    const auto all = recorded(texts);
    BOOST_TEST(all.as_array().size() == 1000u);
    BOOST_TEST(all.as_array()[999].as_string().starts_with("999xxx"));
    BOOST_TEST(all.as_array()[999].as_string().size() < 400u);
    BOOST_TEST(test::read_file(file).size() < 500'000u);
    // Names that hide to the same one do not hide each other.
    secrets.add("s3cr3t-one");
    secrets.add("s3cr3t-two");
    json::object names;
    names["s3cr3t-one"] = 1;
    names["s3cr3t-two"] = 2;
    BOOST_TEST(json::serialize(recorded(names)) == R"({"[hidden]":1,"[hidden]'":2})");
}

BOOST_AUTO_TEST_CASE(every_call_leaves_its_end) {
    const auto log = std::make_shared<AuditLog>(file);
    {
        AuditedCall(log, call(), secrets);
    }
    {
        AuditedCall(log, call(), secrets).failed("no such tool");
    }
    {
        AuditedCall(log, call(), secrets).decided(Decision(Verdict::allow));
    }
    {
        AuditedCall audited(log, call(), secrets);
        audited.decided(Decision(Verdict::allow));
        audited.failed("the server died");
    }
    {
        AuditedCall(nullptr, call(), secrets).decided(Decision(Verdict::allow));
    }
    const auto all = records(file);
    BOOST_TEST_REQUIRE(all.size() == 6u);
    BOOST_TEST(text(all[0], "reason") == "withdrawn before it was decided");
    BOOST_TEST(text(all[1], "reason") == "no such tool");
    BOOST_TEST(text(all[1], "by") == "tool server");
    BOOST_TEST(text(all[3], "outcome") == "withdrawn");
    BOOST_TEST(text(all[5], "outcome") == "failed");
    BOOST_TEST(text(all[5], "error") == "the server died");
}

BOOST_AUTO_TEST_CASE(the_outcome_is_known_without_a_log) {
    AuditedCall withdrawn(nullptr, call(), secrets);
    BOOST_TEST(withdrawn.outcome() == "withdrawn");
    AuditedCall unknown(nullptr, call(), secrets);
    unknown.failed("no such tool");
    BOOST_TEST(unknown.outcome() == "failed");
    AuditedCall refused(nullptr, call(), secrets);
    refused.decided(Decision(Verdict::deny));
    refused.failed("the server died");
    BOOST_TEST(refused.outcome() == "denied");
    Decision late(Verdict::deny);
    late.expired = true;
    AuditedCall expired(nullptr, call(), secrets);
    expired.decided(late);
    BOOST_TEST(expired.outcome() == "expired");
    AuditedCall carried_out(nullptr, call(), secrets);
    carried_out.decided(Decision(Verdict::allow));
    BOOST_TEST(carried_out.outcome() == "withdrawn");
    carried_out.ended("ok");
    BOOST_TEST(carried_out.outcome() == "ok");
}

BOOST_AUTO_TEST_CASE(what_no_execution_makes_names_none) {
    ToolCall made = call();
    made.execution.clear();
    AuditedCall(std::make_shared<AuditLog>(file), made, secrets).decided(Decision(Verdict::allow));
    BOOST_TEST(!records(file).at(0).contains("execution"));
}

BOOST_AUTO_TEST_CASE(executions_leave_the_hash_of_their_code_and_the_code_if_wanted) {
    AuditLog log(file);
    audit_execution(log, "s", "7", "print(1)");
    AuditOptions options;
    options.code_text = true;
    AuditLog whole(file, options);
    audit_execution(whole, "s", "8", "print(1)");
    const auto all = records(file);
    BOOST_TEST(text(all.at(0), "code_sha256") == detail::sha256_hex("print(1)"));
    BOOST_TEST(text(all.at(0), "code_sha256").size() == 64u);
    BOOST_TEST(!all.at(0).contains("code"));
    BOOST_TEST(text(all.at(1), "code") == "print(1)");
}

BOOST_AUTO_TEST_CASE(a_full_disk_stops_calls_and_loses_no_record) {
    const auto log = std::make_shared<AuditLog>(file);
    log->write(event("first"));
    AuditedCall running(log, call(), secrets);
    running.decided(Decision(Verdict::allow));
    {
        const SizeLimit full(std::filesystem::file_size(file) + 20);  // a part of a line still fits
        AuditedCall refused(log, call(), secrets);
        BOOST_CHECK_EXCEPTION(refused.decided(Decision(Verdict::allow)), Error,
                              [](const Error& error) { return error.code() == errc::io_error; });
        BOOST_CHECK_THROW(running.ended("ok"), Error);
        BOOST_CHECK_THROW(log->write(event("later")), Error);
    }
    log->write(event("last"));
    std::vector<std::string> events;
    for (const auto& record : records(file)) events.emplace_back(text(record, "event"));
    // `refused` was recorded as allowed, and as withdrawn when it ended.
    const std::vector<std::string> expected = {"first",  "call",  "call", "result",
                                               "result", "later", "last"};
    BOOST_TEST(std::is_permutation(events.begin(), events.end(), expected.begin(), expected.end()));
    BOOST_TEST(events.back() == "last");
}

BOOST_AUTO_TEST_CASE(by_option_a_full_disk_is_a_warning) {
    std::string warned;
    Logger logger;
    logger.write = [&](LogLevel, std::string_view line) { warned = line; };
    AuditOptions options;
    options.stop_on_failure = false;
    AuditLog log("/dev/full", options, logger);
    log.write(event("lost"));
    BOOST_TEST(warned.find("/dev/full cannot be written: No space left") != std::string::npos,
               warned);
    BOOST_CHECK_THROW(AuditLog("/dev/full").write(event("kept")), Error);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace audit_log_tests
