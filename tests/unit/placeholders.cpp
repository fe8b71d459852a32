#include <signal.h>
#include <sys/wait.h>

#include <boost/test/unit_test.hpp>
#include <ipybox/sandbox_kit/detail/placeholders.hpp>
#include <optional>

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

BOOST_AUTO_TEST_CASE(names_held_in_a_directory_that_was_not_marked_yet_go_with_it) {
    const Machine machine;
    // In either order of their records.
    for (const bool inner_first : {false, true}) {
        const auto outer = [&](PlaceholderRecord& record) {
            record.add(machine.workspace, ".claude");
            fs::create_directory(machine.workspace / ".claude");
        };
        const auto inner = [&](PlaceholderRecord& record) {
            record.add(machine.workspace, ".claude/commands");
            fs::create_directories(machine.workspace / ".claude" / "commands");
        };
        machine.kill_after(
            [&](PlaceholderRecord& record) { (inner_first ? inner(record) : outer(record)); });
        machine.kill_after(
            [&](PlaceholderRecord& record) { (inner_first ? outer(record) : inner(record)); });
        machine.sweep();
        BOOST_TEST(fs::is_empty(machine.workspace));
    }
}

BOOST_AUTO_TEST_CASE(a_directory_goes_when_nobody_holds_names_in_it_any_more) {
    const Machine machine;
    const auto claude = machine.workspace / ".claude";
    machine.kill_after([&](PlaceholderRecord& record) {
        record.add(machine.workspace, ".claude");
        fs::create_directory(claude);
    });
    {
        const UniqueFd inside(::open(claude.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
        Placeholders held(machine.state);
        BOOST_TEST(held.hold(machine.workspace, ".claude/commands", inside, true));
        machine.sweep();
        BOOST_TEST(fs::exists(claude / "commands"));
    }
    BOOST_TEST(!fs::exists(claude / "commands"));
    machine.sweep();
    BOOST_TEST(!fs::exists(claude));
    // The same where the directory's maker lives longest, but ends before the other does.
    const UniqueFd place(::open(machine.workspace.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    std::optional<Placeholders> maker(std::in_place, machine.state),
        other(std::in_place, machine.state);
    BOOST_TEST(maker->hold(machine.workspace, ".claude", place, true));
    const UniqueFd inside(::open(claude.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    BOOST_TEST(other->hold(machine.workspace, ".claude/commands", inside, true));
    maker.reset();
    other.reset();
    machine.sweep();
    BOOST_TEST(!fs::exists(claude));
    BOOST_TEST(fs::is_empty(machine.state / "placeholders"));
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
