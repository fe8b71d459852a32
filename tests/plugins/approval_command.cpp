// Approvers that are real programs: good ones, broken ones, and one that code could have written.
#include <stdlib.h>

#include <boost/json/parse.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/approval/config.hpp>
#include <ipybox/approval/tool_binding.hpp>
#include <ipybox/config.hpp>
#include <ipybox/sandbox_kit/writable_places.hpp>

#include "place_fixture.hpp"

namespace plugin_approval_command_tests {

using namespace ipybox;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {
struct CommandFixture : test::PlaceFixture {
    CommandFixture() {
        registry.add_directory(test::plugin_directory());
        host.logger = {LogLevel::info,
                       [this](LogLevel, std::string_view line) { (logged += line) += '\n'; }};
        host.ask = [this](ToolCall call) -> awaitable<Decision> {
            asked.push_back(std::move(call));
            Decision decision(Verdict::allow);
            decision.by = "console: once";
            co_return decision;
        };
    }
    fs::path program(const std::string& name, std::string_view script) const {
        file(name, "#!/bin/sh\n" + std::string(script) + "\n");
        fs::permissions(root / name, fs::perms(0755));
        return root / name;
    }
    // What answers with this text.
    fs::path answering(std::string_view text) const {
        return program("approver", "cat > /dev/null\nprintf '%s' '" + std::string(text) + "'");
    }
    PolicyPtr make(const fs::path& approver, json::object more = {}) {
        more["command"] = json::array{approver.string()};
        json::object policy;
        policy["command"] = std::move(more);
        return make_policy(registry, host, policy, "policy.json");
    }
    static ToolCall call() {
        ToolCall made;
        made.server = "files";
        made.server_identity = "npx files ${TOKEN}";
        made.tool = "write";
        made.description = "Writes.";
        made.annotations["readOnlyHint"] = false;
        made.input_schema = std::make_shared<const json::object>(json::object{{"type", "object"}});
        made.definition_hash =
            approval::definition_hash(*made.input_schema, made.description, made.annotations);
        made.session = "one";
        made.id = "0011223344556677";
        made.execution = "8899aabbccddeeff";
        boost::system::error_code error;
        made.set_arguments(
            detail::parse_exact(R"({"path": "/x", "n": 123456789012345678901.50})", error)
                .as_object());
        return made;
    }
    Decision decide(ApprovalPolicy& policy, ToolCall made = call()) {
        return test::run(context, approve(policy, std::move(made), 60s));
    }
    Decision decide(const fs::path& approver, json::object more = {}) {
        const auto policy = make(approver, std::move(more));
        return decide(*policy);
    }
    void denies(const fs::path& approver, std::string_view words, json::object more = {}) {
        const auto decision = decide(approver, std::move(more));
        BOOST_TEST((decision.verdict == Verdict::deny));
        BOOST_TEST(decision.reason.starts_with("the approver failed: "), decision.reason);
        BOOST_TEST(decision.reason.find(words) != std::string::npos, decision.reason);
        BOOST_TEST(decision.by == "command " + approver.filename().string());
        BOOST_TEST(asked.empty());
    }

    asio::io_context context;
    Host host{context.get_executor(), {}, {}};
    PluginRegistry registry;
    std::vector<ToolCall> asked;
    std::string logged;
};
}  // namespace

BOOST_FIXTURE_TEST_SUITE(approval_command, CommandFixture)

BOOST_AUTO_TEST_CASE(a_program_allows_and_denies_and_says_why) {
    auto decision = decide(answering(R"({"decision": "allow", "rationale": "only a draft"})"));
    BOOST_TEST((decision.verdict == Verdict::allow));
    BOOST_TEST(decision.by == "command approver");
    BOOST_TEST(decision.reason == "only a draft");
    decision = decide(answering(R"({"decision": "deny", "rationale": "not /x"})"));
    BOOST_TEST((decision.verdict == Verdict::deny));
    BOOST_TEST(decision.reason == "not /x");
    decision = decide(answering(R"({"decision": "deny"})"));
    BOOST_TEST((decision.verdict == Verdict::deny));
    BOOST_TEST(asked.empty());
    // A short form, as for rules; a program of PATH, which has no input to read.
    const auto policy = make_policy(
        registry, host, json::parse(R"({"command": ["echo", "{\"decision\": \"allow\"}"]})"),
        "policy.json");
    BOOST_TEST((decide(*policy).verdict == Verdict::allow));
}

BOOST_AUTO_TEST_CASE(a_program_may_leave_it_to_the_person) {
    const auto approver = answering(R"({"decision": "ask", "rationale": "it is a payment"})");
    const auto policy = make(approver);
    const auto decision = decide(*policy);
    BOOST_TEST((decision.verdict == Verdict::allow));
    BOOST_TEST(decision.by == "command approver, console: once");
    BOOST_TEST(decision.reason == "command approver asked: it is a payment");
    BOOST_TEST_REQUIRE(asked.size() == 1u);
    BOOST_TEST(asked[0].tool == "write");
    host.ask = [](ToolCall) -> awaitable<Decision> { co_return Decision(); };
    BOOST_TEST((decide(*policy).verdict == Verdict::deny));
    host.ask = nullptr;
    BOOST_TEST(decide(*policy).reason == "nobody is there to approve this call");
}

BOOST_AUTO_TEST_CASE(a_program_is_told_the_call_and_gets_nothing_else) {
    ::setenv("IPYBOX_TEST_SECRET", "hunter2-hunter2", 1);
    const auto approver = program(
        "teller", "cat > " + (root / "input").string() + "; env > " + (root / "env").string() +
                      "; pwd > " + (root / "cwd").string() + "; ls /proc/self/fd > " +
                      (root / "fds").string() + R"(; echo '{"decision": "allow"}')");
    json::object env;
    env["MODEL"] = "small";
    const auto policy = make(approver, {{"env", env}});
    BOOST_TEST((decide(*policy).verdict == Verdict::allow));
    boost::system::error_code error;
    const auto text = test::read_file(root / "input");
    const auto told = detail::parse_exact(text, error).as_object();
    BOOST_TEST(!error);
    BOOST_TEST(text.find("123456789012345678901.50") != std::string::npos);
    const auto made = call();
    BOOST_TEST(told.at("server") == "files");
    BOOST_TEST(told.at("server_identity") == "npx files ${TOKEN}");
    BOOST_TEST(told.at("tool") == "write");
    BOOST_TEST(told.at("description") == "Writes.");
    BOOST_TEST(told.at("annotations") == json::value(made.annotations));
    BOOST_TEST(told.at("input_schema") == json::value(*made.input_schema));
    BOOST_TEST(told.at("definition_hash") == json::value(made.definition_hash));
    BOOST_TEST(told.at("arguments") == json::value(made.sent_arguments()));
    BOOST_TEST(told.at("origin") == "mcp");
    BOOST_TEST(told.at("session") == "one");
    BOOST_TEST(told.at("call") == "0011223344556677");
    BOOST_TEST(told.at("execution") == "8899aabbccddeeff");
    BOOST_TEST(told.at("question").as_string().starts_with("files.write\n"));
    BOOST_TEST(told.size() == 13u);
    const auto variables = test::read_file(root / "env");
    BOOST_TEST(variables.find("hunter2") == std::string::npos, variables);
    BOOST_TEST(variables.find("MODEL=small") != std::string::npos, variables);
    BOOST_TEST(variables.find("HOME=") == std::string::npos, variables);
    BOOST_TEST(test::read_file(root / "cwd") == "/\n");
    const auto files = test::read_file(root / "fds");
    BOOST_TEST(std::count(files.begin(), files.end(), '\n') <= 4, files);  // and that of ls
}

BOOST_AUTO_TEST_CASE(what_a_program_was_given_in_secret_reaches_neither_code_nor_log) {
    ::setenv("IPYBOX_TEST_SECRET", "hunter2-hunter2", 1);
    json::object env;
    env["KEY"] = "${IPYBOX_TEST_SECRET}";
    const auto loose = program(
        "loose", R"(cat > /dev/null; echo "{\"decision\": \"deny\", \"rationale\": \"$KEY\"}")");
    BOOST_TEST(decide(loose, {{"env", env}}).reason == "[hidden]");
    const auto crash = program("crash", "echo \"it was $KEY\" >&2; exit 3");
    denies(crash, "exit code 3", {{"env", env}});
    BOOST_TEST(logged.find("it was [hidden]") != std::string::npos, logged);
    BOOST_TEST(logged.find("hunter2") == std::string::npos, logged);
    env["KEY"] = "${IPYBOX_TEST_NOT_SET}";
    fails([&] { make(loose, {{"env", env}}); }, errc::bad_config, "IPYBOX_TEST_NOT_SET is not set");
}

BOOST_AUTO_TEST_CASE(garbage_denies) {
    for (const char* text :
         {"", "yes", "null", "[]", "{}", R"({"decision": "yes"})", R"({"decision": true})",
          R"({"decision": "Allow"})", R"({"decision": "allow"} {"decision": "allow"})",
          R"({"decision": "allow", "more": 1})", R"({"decision": "allow", "rationale": 5})",
          R"({"decision": "deny", "decision": "allow"})",
          R"({"decision": "allow"})"
          "\\n\xff"}) {
        denies(answering(text), "its answer");
    }
    const auto long_one =
        answering(R"({"decision": "deny", "rationale": ")" + std::string(20'000, 'x') + "\"}");
    BOOST_TEST(decide(long_one).reason.size() == 2000u);
}

BOOST_AUTO_TEST_CASE(a_program_that_fails_denies) {
    const std::string yes = R"(echo '{"decision": "allow"}')";
    denies(program("fails", "cat > /dev/null; " + yes + "; exit 1"), "exit code 1");
    denies(program("dies", "cat > /dev/null; " + yes + "; kill -9 $$"), "exit code 137");
    denies(program("endless", "cat > /dev/null; yes '" + std::string(100, ' ') + "'"),
           "more than 65536 bytes");
    denies(program("hangs", yes + "; exec sleep 60"), "no answer within 1 s", {{"deadline", "1s"}});
    // What it left behind is ended with it.
    const auto leaves = program(
        "leaves", "sleep 61 & echo $! > " + (root / "left").string() + "; " + yes + "; wait");
    denies(leaves, "no answer within 1 s", {{"deadline", "1s"}});
    auto left = test::read_file(root / "left");
    left.erase(left.find('\n'));
    const auto stat = test::read_file("/proc/" + left + "/stat");  // empty: it is gone
    const auto end = stat.rfind(')');
    BOOST_TEST((end == std::string::npos || stat[end + 2] == 'Z' || stat[end + 2] == 'X'), stat);
    // Neither does one that never reads hold up a call of any size.
    auto large = call();
    large.arguments["text"] = std::string(4u << 20, 'x');
    large.exact_arguments = nullptr;
    const auto deaf = make(program("deaf", "exec sleep 60"), {{"deadline", "1s"}});
    BOOST_TEST((decide(*deaf, large).verdict == Verdict::deny));
    const auto quick = make(program("quick", yes));
    BOOST_TEST((decide(*quick, large).verdict == Verdict::allow));
    const auto reads = make(answering(R"({"decision": "allow"})"));
    BOOST_TEST((decide(*reads, large).verdict == Verdict::allow));
}

BOOST_AUTO_TEST_CASE(a_program_that_vanished_denies) {
    const auto approver = answering(R"({"decision": "allow"})");
    const auto policy = make(approver);
    fs::remove(approver);
    const auto decision = decide(*policy);
    BOOST_TEST((decision.verdict == Verdict::deny));
    BOOST_TEST(decision.reason.find("no such file") != std::string::npos, decision.reason);
    fails([&] { make(approver); }, errc::bad_config, "policy.json: command: there is no program");
    fails([&] { make("no-such-approver"); }, errc::bad_config, "in PATH");
    fails([&] { make("/bin/true", {{"deadline", "soon"}}); }, errc::bad_config, "deadline");
}

BOOST_AUTO_TEST_CASE(what_code_could_have_written_is_not_run) {
    const auto planted =
        program("work/approver", R"(touch "$0.ran"; echo '{"decision": "allow"}')");
    const auto own = program("kept/approver", R"(echo '{"decision": "allow"}')");
    file("work/approver.py", "print('{\"decision\": \"allow\"}')\n");
    file("kept/link.sh", "#!" + planted.string() + "\n");
    fs::permissions(root / "kept/link.sh", fs::perms(0755));
    fs::create_symlink(planted, root / "kept/led");
    const auto before = make(planted);  // nothing runs in a sandbox yet
    BOOST_TEST((decide(*before).verdict == Verdict::allow));
    BOOST_TEST(fs::remove(root / "work/approver.ran"));
    SandboxPolicy policy;
    policy.writable = {root / "work"};
    writable_places().record(policy);
    const auto decision = decide(*before);
    BOOST_TEST((decision.verdict == Verdict::deny));
    BOOST_TEST(
        decision.reason.find("lies where code in a sandbox could write") != std::string::npos,
        decision.reason);
    BOOST_TEST(!fs::exists(root / "work/approver.ran"));
    fails([&] { make(planted); }, errc::denied, "put it elsewhere");
    fails([&] { make(root / "kept/led"); }, errc::denied, "put it elsewhere");
    fails([&] { make(root / "kept/link.sh"); }, errc::denied, "the interpreter of");
    json::object python;
    python["command"] = json::array{"python3", (root / "work/approver.py").string()};
    fails([&] { make_policy(registry, host, python, "policy.json"); }, errc::denied,
          "its argument");
    BOOST_TEST((decide(own).verdict == Verdict::allow));
}

BOOST_AUTO_TEST_CASE(many_calls_wait_for_few_programs) {
    // Each says how many run beside it.
    const auto counting =
        program("counting",
                "mkdir " + (root / "running").string() + "/$$; ls " + (root / "running").string() +
                    " | wc -l >> " + (root / "most").string() + "; sleep 0.1; rmdir " +
                    (root / "running").string() + "/$$" + R"(; echo '{"decision": "allow"}')");
    fs::create_directories(root / "running");
    const auto policy = make(counting);
    std::size_t allowed = 0;
    for (int i = 0; i < 20; ++i)
        asio::co_spawn(context, approve(*policy, call(), 60s),
                       [&](std::exception_ptr, Decision made) {
                           allowed += made.verdict == Verdict::allow ? 1 : 0;
                       });
    context.run_for(60s);
    BOOST_TEST(allowed == 20u);
    std::istringstream lines(test::read_file(root / "most"));
    for (int running = 0; lines >> running;) BOOST_TEST(running <= 4);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace plugin_approval_command_tests
