#include <stdlib.h>
#include <sys/stat.h>

#include <boost/test/unit_test.hpp>
#include <ipybox/sandbox_kit/guarded_sandbox.hpp>
#include <ipybox/sandbox_kit/host_program.hpp>
#include <ipybox/sandbox_kit/program_judgement.hpp>
#include <ipybox/sandbox_kit/python_environment.hpp>

#include "place_fixture.hpp"

namespace host_program_tests {

namespace {
using namespace ipybox;
namespace fs = std::filesystem;

// A place that code could write, and one that it could not.
struct Fixture : test::PlaceFixture {
    fs::path written = make("written"), kept = make("kept");

    fs::path program(const std::string& name, std::string_view text = "#!/bin/sh\n") const {
        file(name, text);
        fs::permissions(root / name, fs::perms(0755));
        return root / name;
    }
    void record(std::vector<fs::path> write_protected = {}) const {
        SandboxPolicy policy;
        policy.writable = {written};
        policy.write_protected = std::move(write_protected);
        writable_places().record(policy);
    }
    template <class Action>
    static void refused(Action action, std::string_view words) {
        fails(action, errc::denied, words);
    }
};
}  // namespace

BOOST_FIXTURE_TEST_SUITE(host_program, Fixture)

BOOST_AUTO_TEST_CASE(path_is_searched_where_no_code_could_write) {
    const auto planted = program("written/tool"), own = program("kept/tool");
    fs::create_symlink(planted, make("links") / "tool");
    const auto path =
        (root / "links").string() + ":" + written.string() + "::relative:" + kept.string();
    BOOST_TEST(find_program("tool", path).value() == root / "links/tool");
    record();
    BOOST_TEST(find_program("tool", path).value() == own);
    BOOST_TEST(!find_program("tool", written.string()));
    BOOST_TEST(find_program("tool", written.string(), Trust::named).value() == planted);
    BOOST_TEST(host_search_path(path) == (root / "links").string() + ":" + kept.string());
    refused([&] { find_program(planted.string(), ""); }, "install it elsewhere");
    refused([&] { find_program((root / "links/tool").string(), ""); }, written.string());
    BOOST_TEST(find_program(planted.string(), "", Trust::named).value() == planted);
    BOOST_TEST(!find_program((written / "absent").string(), ""));
}

BOOST_AUTO_TEST_CASE(an_interpreter_is_judged_with_what_tells_it_where_its_library_is) {
    const auto judge = [&](const fs::path& python) { sandbox_kit::refuse_written_python(python); };
    const auto python = program("kept/venv/bin/python");
    test::write_file(root / "kept/venv/pyvenv.cfg",
                     "home = " + (written / "bin").string() + "\nversion = 3.11\n");
    const auto other = program("kept/other/bin/python");
    fs::create_symlink(program("written/pyvenv.cfg", "home = /usr/bin\n"),
                       root / "kept/other/pyvenv.cfg");
    judge(python);
    judge(other);
    record();
    refused([&] { judge(python); }, "--python");
    refused([&] { judge(other); }, "--python");
    judge("/usr/bin/python3");
    // What hides the line behind others is no virtual environment; a pipe is none, and nobody waits
    // for it.
    const auto padded = program("kept/padded/bin/python");
    test::write_file(root / "kept/padded/pyvenv.cfg",
                     std::string(70'000, '\n') + "home = /usr/bin\n");
    refused([&] { judge(padded); }, "it has more than 64 KiB");
    const auto piped = program("kept/piped/bin/python");
    BOOST_REQUIRE(::mkfifo((root / "kept/piped/pyvenv.cfg").c_str(), 0600) == 0);
    judge(piped);
}

// What a server may be started with.
struct ServerFixture : Fixture {
    std::optional<std::string> judge(std::vector<std::string> argv, fs::path cwd = "/",
                                     bool trust = false) const {
        argv.front() = find_program(argv.front(), env.at("PATH"), Trust::named).value().string();
        return sandbox_kit::judge_program(writable_places(), argv, env, cwd, trust);
    }
    void allowed(std::vector<std::string> argv, fs::path cwd = "/") const {
        const auto problem = judge(argv, cwd);
        BOOST_TEST(!problem, argv[0] << " " << argv.back() << ": " << problem.value_or(""));
    }
    // And allowed by whoever answers for it.
    void judged(std::string_view words, std::vector<std::string> argv, fs::path cwd = "/") const {
        const auto problem = judge(argv, cwd).value_or("nothing");
        BOOST_TEST(problem.starts_with(words), problem);
        BOOST_TEST(problem.find("\"trust_cwd\": true") != std::string::npos, problem);
        BOOST_TEST(!judge(argv, written, true));
    }
    std::map<std::string, std::string> env{{"PATH", "/usr/bin:/bin"}, {"HOME", "/nonexistent"}};
};

BOOST_FIXTURE_TEST_CASE(servers_are_judged_by_what_they_run, ServerFixture) {
    const auto tool = program("written/bin/tool").string(),
               own = program("kept/own.py", "pass\n").string();
    const auto script = program("written/server.py", "pass\n").string(),
               data = make("written/data").string();
    const auto by_interpreter = program("kept/by_interpreter", "#!" + tool + " -x\n").string();
    const auto by_env = program("kept/by_env", "#!/usr/bin/env -S tool -x\n").string();
    fs::create_symlink(script, root / "kept/link.py");
    record();
    allowed({"python3", own, data, script.substr(0, script.size() - 3)});
    allowed({"python3", "-m", "http.server", data});
    allowed({"python3", "-m", "http.server", "--directory=" + data, data});
    allowed({"true", data, script});
    allowed({"env", "A=b", "python3", own, data});
    allowed({"sh", "-c", "true " + data});
    judged("its cwd", {"python3", "-m", "server"}, written);
    judged("its cwd", {"true"}, written / "data");
    judged("its command", {tool});
    judged("the interpreter of", {by_interpreter});
    judged("its argument", {"python3", script});
    judged("its argument", {"python3", "-u", "-W", "error", script});
    judged("its argument", {"python3", (root / "kept/link.py").string()});
    judged("its argument", {"env", "A=b", "python3", script});
    judged("its argument", {"timeout", "5", "sh", tool});
    judged("its argument", {"sh", (written / "bin/../bin/tool").string()});
    judged("its argument", {"bash", data});
    for (const char* flag : {"--directory", "--project", "--from"}) {
        program("kept/uv");
        judged("its argument", {(kept / "uv").string(), flag, data, "run", "server", data});
        judged("its argument",
               {(kept / "uv").string(), flag + ("=" + data), "run", "server", data});
    }
    allowed({(kept / "uv").string(), "run", "server", data});
    program("kept/npx");
    allowed({(kept / "npx").string(), "-y", "@scope/server", data, data});
    judged("its argument", {(kept / "npx").string(), "-y", data});

    env["PATH"] += ":" + written.string() + "/bin";
    judged("the interpreter of", {by_env});
    judged("the entry of PATH", {"true"});
    env["PATH"] = "/usr/bin:/bin";
    env["PYTHONPATH"] = data;
    judged("the entry of PYTHONPATH", {"python3", own});
    env.erase("PYTHONPATH");
    env["HOME"] = make("kept/home").string();
    allowed({"true"});
    fs::create_symlink(written / "npmrc", root / "kept/home/.npmrc");
    judged("its file", {"true"});
}

BOOST_FIXTURE_TEST_CASE(a_scripts_directory_counts_as_the_script_does, ServerFixture) {
    const auto script = program("written/tools/server.py", "pass\n").string();
    record({written / "tools/server.py"});
    judged("its argument", {"python3", script});
    // The script alone was protected, not what it imports.
    SandboxPolicy policy;
    policy.writable = {root / "other"};
    policy.write_protected = {root / "other/server.py"};
    const auto other = program("other/server.py", "pass\n").string();
    WritablePlaces places(root / "state");
    places.record(policy);
    const auto problem =
        sandbox_kit::judge_program(places, {"/usr/bin/python3", other}, env, "/", false);
    BOOST_REQUIRE(problem);
    BOOST_TEST(problem->starts_with("the directory of the script server.py"), *problem);
}

BOOST_FIXTURE_TEST_CASE(trust_reaches_no_further_than_the_place_of_the_cwd, ServerFixture) {
    record();
    SandboxPolicy other;
    other.writable = {make("second")};
    writable_places().record(other);
    const auto tool = program("second/tool").string();
    BOOST_TEST(judge({tool}, written, true).value_or("").starts_with("its command"));
    BOOST_TEST(!judge({tool}, root / "second", true));
    BOOST_TEST(judge({tool}, kept, true).has_value());
}

BOOST_AUTO_TEST_CASE(a_policy_asks_for_no_more_than_the_sandbox_says) {
    Capabilities none;
    const auto refuses = [](const SandboxPolicy& policy, const Capabilities& able,
                            std::string_view words) {
        BOOST_CHECK_EXCEPTION(refuse_beyond(policy, able, "mine"), Error, [&](const Error& error) {
            BOOST_TEST_INFO(error.what());
            return error.code() == errc::sandbox_refused &&
                   error.detail().find(words) != std::string::npos;
        });
    };
    SandboxPolicy open;
    open.network.mode = NetworkPolicy::Mode::full;
    open.writable = {"/x"};
    refuse_beyond(open, none, "mine");
    const auto with = [&](auto edit) {
        auto policy = open;
        edit(policy);
        return policy;
    };
    refuses(with([](auto& p) { p.network.mode = NetworkPolicy::Mode::none; }), none,
            "\"mine\" cannot restrict the network");
    refuses(with([](auto& p) { p.network.mode = NetworkPolicy::Mode::allow_list; }), none,
            "allowed hosts");
    refuses(with([](auto& p) { p.hidden = {"x"}; }), none, "hide");
    refuses(with([](auto& p) { p.write_protected = {"/x/y"}; }), none, "write-protect");
    for (const auto& each :
         {std::pair(Programs::deny, "\"mine\" cannot keep code from starting programs"),
          std::pair(Programs::ask, "\"mine\" cannot start programs for code")}) {
        const auto policy = with([&each](auto& p) { p.programs = each.first; });
        refuse_beyond(policy, none, "mine", "");
        const auto says = [&each](std::string_view why) {
            return [&each, why](const Error& error) {
                const std::string said = error.what();
                return error.code() == errc::sandbox_refused &&
                       said.find(each.second) != said.npos && said.find(why) != said.npos;
            };
        };
        BOOST_CHECK_EXCEPTION(refuse_beyond(policy, none, "mine", "because"), Error,
                              says("): because; use sandbox"));
        // Whoever has not asked the sandbox is refused.
        BOOST_CHECK_EXCEPTION(refuse_beyond(policy, none, "mine"), Error,
                              says("): it has no such wall by itself; use sandbox"));
    }
    struct Limit {
        std::optional<std::uint64_t> Limits::* limit;
        bool Capabilities::* able;
        const char* field;
    };
    for (const auto& [limit, enforced, field] :
         {Limit{&Limits::memory_per_process, &Capabilities::limits_per_process,
                "memory_per_process"},
          {&Limits::memory_total, &Capabilities::memory_total, "memory_total"},
          {&Limits::open_files, &Capabilities::limits_per_process, "open_files"},
          {&Limits::file_size, &Capabilities::limits_per_process, "file_size"},
          {&Limits::cpu_seconds, &Capabilities::limits_per_process, "cpu_seconds"},
          {&Limits::wall_seconds, &Capabilities::wall_time, "wall_seconds"},
          {&Limits::scratch_size, &Capabilities::scratch_size, "scratch_size"},
          {&Limits::scratch_inodes, &Capabilities::scratch_inodes, "scratch_inodes"},
          {&Limits::workspace_size, &Capabilities::workspace_size, "workspace_size"}}) {
        const auto policy = with([limit = limit](auto& p) { p.limits.*limit = 1; });
        refuses(policy, none, field);
        Capabilities able;
        able.*enforced = true;
        refuse_beyond(policy, able, "mine");
        able.*enforced = false;
        able.reasons[field] = "because";
        refuses(policy, able, field + std::string(" cannot be enforced here: because"));
    }
    const auto processes = with([](auto& p) { p.limits.processes = 1; });
    Capabilities able;
    able.limits_per_process = true;
    refuses(processes, able, "the number of processes");
    able.process_isolation = true;
    refuse_beyond(processes, able, "mine");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace host_program_tests
