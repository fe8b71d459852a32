// The launcher as a sandbox's only wall.
#include <sys/stat.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <ipybox/sandbox_kit/launcher.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <ipybox/sandbox_kit/writable_places.hpp>

#include "place_fixture.hpp"

namespace launcher_tests {

namespace {
using namespace ipybox;
namespace fs = std::filesystem;

// A workspace that the guest may write, beside a place that only its user may.
struct Fixture : test::PlaceFixture {
    fs::path workspace = make("workspace"), other = make("other");
    fs::path launcher = test::required_environment("IPYBOX_TEST_LAUNCHER");
    asio::io_context context{1};
    SandboxPolicy policy;

    Fixture() {
        // Started by root, the guest is not.
        for (const auto& place : {workspace, other})
            if (::geteuid() == 0) BOOST_REQUIRE(::chown(place.c_str(), 65534, 65534) == 0);
        policy.cwd = workspace;
        policy.writable = {workspace};
        policy.env = {{"PATH", "/usr/bin:/bin"}};
        policy.network.mode = NetworkPolicy::Mode::full;
    }
    std::unique_ptr<SandboxedProcess> start(const std::string& script,
                                            const std::vector<Channel>& channels = {}) {
        return launched(context.get_executor(), launcher, policy, {"/bin/sh", "-c", script},
                        channels, Stdio::tail);
    }
    // What it prints.
    std::string shell(const std::string& script, const std::vector<Channel>& channels = {}) {
        const auto process = start(script, channels);
        test::run(context, process->wait(never));
        return process->output_tail();
    }
    template <class Change>
    void refused(Change change, std::string_view words) {
        const auto before = policy;
        change(policy);
        fails([&] { start("echo > ran"); }, errc::sandbox_refused, words);
        policy = before;
        BOOST_TEST(!fs::exists(workspace / "ran"), words);
    }
};
}  // namespace

BOOST_FIXTURE_TEST_SUITE(launcher, Fixture)

BOOST_AUTO_TEST_CASE(what_it_can_enforce_it_says) {
    const auto able = launched_capabilities();
    bool found = true;
    try {
        find_launcher();
    } catch (const Error& error) {
        found = false;
        BOOST_TEST((error.code() == errc::missing_dependency), error.what());
        if (landlock_version() >= 1) BOOST_TEST(able.problem == error.detail());
    }
    BOOST_TEST(able.available == (found && landlock_version() >= 1));
    BOOST_TEST(able.available == able.problem.empty());
    BOOST_TEST((able.limits_per_process && able.wall_time));
    BOOST_TEST(!(able.filesystem || able.network_none || able.network_allow_list ||
                 able.process_isolation || able.memory_total || able.scratch_size ||
                 able.scratch_inodes || able.workspace_size));
    BOOST_TEST(launched_user(policy) == (::geteuid() == 0 ? 65534u : ::geteuid()));
}

BOOST_AUTO_TEST_CASE(more_than_that_is_refused_whoever_calls) {
    if (landlock_version() < 1) {
        fails([&] { start("echo > ran"); }, errc::sandbox_refused, "Landlock");
        return;
    }
    using Mode = NetworkPolicy::Mode;
    refused([](auto& p) { p.network.mode = Mode::none; }, "network");
    refused([](auto& p) { p.network.mode = Mode::allow_list; }, "network");
    refused([](auto& p) { p.hidden = {"**/.env"}; }, "hide files");
    refused([](auto& p) { p.write_protected = {p.cwd / ".git"}; }, "write-protect");
    refused([](auto& p) { p.limits.memory_total = 1u << 30; }, "memory_total");
    refused([](auto& p) { p.limits.processes = 100; }, "processes");
    refused([](auto& p) { p.limits.scratch_size = 1u << 30; }, "scratch_size");
    refused([](auto& p) { p.limits.scratch_inodes = 1000; }, "scratch_inodes");
    refused([](auto& p) { p.limits.workspace_size = 1u << 30; }, "workspace_size");
    refused([](auto& p) { p.programs = Programs::deny; }, "starting programs");
    // Nor does it start as root.
    if (::geteuid() == 0) refused([](auto& p) { p.user = 0; }, "root");
    // What code could write is no launcher.
    SandboxPolicy recorded;
    launcher = file("other/ipybox-launcher");
    recorded.writable = {other};
    writable_places().record(recorded);
    fails([&] { start("echo > ran"); }, errc::denied, other.string());
    BOOST_TEST(!fs::exists(workspace / "ran"));
}

BOOST_AUTO_TEST_CASE(the_guest_writes_its_workspace_and_its_channels) {
    if (landlock_version() < 1) {
        BOOST_TEST_MESSAGE("skipped: no Landlock here");
        return;
    }
    const auto written = "(echo x > " + (other / "file").string() + ") 2>/dev/null || echo no";
    BOOST_TEST(shell("echo x > mine; cat mine; " + written) == "x\nno\n");
    BOOST_TEST(fs::exists(workspace / "mine"));
    Channel channel;
    channel.name = "kernel";
    channel.host_path = other;
    BOOST_TEST(shell(written + "; echo \"$TMPDIR\"", {channel}) == "no\n\n");
    channel.access = Channel::Access::sockets;
    BOOST_TEST(shell(written, {channel}) == "no\n");
    channel.access = Channel::Access::write;
    BOOST_TEST(shell(written + "; echo \"$TMPDIR\"", {channel}) == other.string() + "\n");
    BOOST_TEST(fs::exists(other / "file"));
    policy.limits.open_files = 100;
    policy.limits.file_size = 1u << 20;
    policy.limits.cpu_seconds = 600;
    BOOST_TEST(shell("ulimit -n; ulimit -t") == "100\n600\n");
    policy.limits.wall_seconds = 1;
    const auto process = start("sleep 60");
    const auto ended = test::run(context, process->wait(Clock::now() + std::chrono::seconds(20)));
    BOOST_TEST(ended.has_value());
}

// Else a directory that lies where it did passes, while its mount was led elsewhere by a link.
BOOST_AUTO_TEST_CASE(what_is_mounted_nowhere_or_is_another_starts_nothing) {
    const auto ran = [this](const std::string& option, const std::string& value) {
        SpawnRequest request;
        request.stdio = Stdio::tail;
        request.argv = {launcher.string(), option, value, "--", "/bin/echo", "ran"};
        ChildProcess process(context.get_executor(), std::move(request));
        test::run(context, process.wait(never));
        return process.output_tail();
    };
    const auto stopped = [&ran](const std::string& option, const std::string& value) {
        const auto said = ran(option, value);
        BOOST_TEST(said.find("ran\n") == said.npos, said);
        return said.find("somebody has replaced") != said.npos;
    };
    const auto numbered = [](const fs::path& path, unsigned more = 0) {
        struct stat found{};
        BOOST_TEST_REQUIRE(::stat(path.c_str(), &found) == 0);
        return std::to_string(found.st_dev) + ":" + std::to_string(found.st_ino + more) + ":" +
               path.string();
    };
    BOOST_TEST(ran("--same", numbered("/proc")) == "ran\n");
    BOOST_TEST(ran("--mounted", "/proc") == "ran\n");
    BOOST_TEST(stopped("--same", numbered("/proc", 1)));
    BOOST_TEST(stopped("--same", numbered(other)));
    BOOST_TEST(stopped("--mounted", other));
    fs::create_symlink("/proc", other / "link");
    BOOST_TEST(stopped("--mounted", other / "link"));
    BOOST_TEST(ran("--mounted", other / "absent").find("cannot look at") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace launcher_tests
