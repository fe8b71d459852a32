#include <signal.h>
#include <sys/wait.h>

#include <boost/test/unit_test.hpp>
#include <ipybox/sandbox_kit/detail/placeholders.hpp>

#include "test_support.hpp"

namespace unit_placeholders_tests {

using namespace ipybox;
using detail::PlaceholderRecord, detail::Placeholders;
namespace fs = std::filesystem;

namespace {
// A process that holds names in a workspace, and is killed in the middle of it.
struct Machine {
    Machine() { fs::create_directories(workspace); }
    template <class Work>
    void kill_after(Work work) const {
        const pid_t host = ::fork();
        if (host == 0) {
            PlaceholderRecord record(state);
            work(record);
            ::kill(::getpid(), SIGKILL);
        }
        int status = 0;
        BOOST_REQUIRE(::waitpid(host, &status, 0) == host);
        BOOST_REQUIRE(WIFSIGNALED(status));
    }
    void sweep() const { Placeholders::sweep_what_others_left(state); }

    test::TemporaryDirectory directory;
    fs::path state = directory.path() / "state", workspace = directory.path() / "workspace";
};
}  // namespace

BOOST_AUTO_TEST_SUITE(placeholders)

BOOST_AUTO_TEST_CASE(a_directory_goes_whose_maker_was_killed_before_it_was_marked) {
    const Machine machine;
    machine.kill_after([&](PlaceholderRecord& record) {
        record.add(machine.workspace, ".claude");
        fs::create_directory(machine.workspace / ".claude");
    });
    BOOST_TEST(fs::exists(machine.workspace / ".claude"));
    machine.sweep();
    BOOST_TEST(!fs::exists(machine.workspace / ".claude"));
}

BOOST_AUTO_TEST_CASE(what_somebody_else_made_stays) {
    const Machine machine;
    machine.kill_after([&](PlaceholderRecord& record) {
        for (const auto* name : {".claude", ".vscode", ".envrc"})
            record.add(machine.workspace, name);
    });
    // Made meanwhile: with something in it, a file, and a directory that nobody announced.
    fs::create_directories(machine.workspace / ".claude" / "commands");
    test::write_file(machine.workspace / ".envrc", "");
    fs::create_directory(machine.workspace / ".idea");
    machine.sweep();
    BOOST_TEST(fs::exists(machine.workspace / ".claude" / "commands"));
    BOOST_TEST(fs::exists(machine.workspace / ".envrc"));
    BOOST_TEST(fs::exists(machine.workspace / ".idea"));
}

BOOST_AUTO_TEST_CASE(what_a_living_process_holds_stays) {
    const Machine machine;
    const UniqueFd place(::open(machine.workspace.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    {
        Placeholders held(machine.state);
        BOOST_TEST(held.hold(machine.workspace, ".claude", place, true));
        machine.sweep();
        BOOST_TEST(fs::exists(machine.workspace / ".claude"));
    }
    BOOST_TEST(!fs::exists(machine.workspace / ".claude"));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace unit_placeholders_tests
