#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <ipybox/sandbox_kit/workspace_snapshot.hpp>
#include <map>
#include <string>

#include "test_support.hpp"

namespace workspace_snapshot_tests {

using namespace ipybox;
using sandbox_kit::WorkspaceSnapshot;
using Change = WorkspaceSnapshot::Change;

namespace {
WorkspaceSnapshot snapshot(const std::filesystem::path& directory) {
    WorkspaceSnapshot seen(directory, true);
    while (seen.step()) {
    }
    return seen;
}

std::map<std::string, Change> changes(const WorkspaceSnapshot& before,
                                      const WorkspaceSnapshot& after) {
    std::map<std::string, Change> found;
    before.compare(after, [&](const std::string& path, Change change) { found[path] = change; });
    return found;
}
}  // namespace

BOOST_AUTO_TEST_SUITE(workspace_snapshot)

BOOST_AUTO_TEST_CASE(what_came_changed_and_went_is_told) {
    const test::TemporaryDirectory place;
    const auto& root = place.path();
    std::filesystem::create_directories(root / "deep/er");
    for (const char* name : {"same", "changed", "deep/er/removed", "deep/touched"})
        test::write_file(root / name, "1");
    std::filesystem::create_symlink("same", root / "link");
    const auto before = snapshot(root);
    BOOST_TEST(changes(before, snapshot(root)).empty());

    test::write_file(root / "changed", "22");
    test::write_file(root / "deep/er/new", "");
    std::filesystem::remove(root / "deep/er/removed");
    // The same size and time: what no program can set tells.
    const auto touched = root / "deep/touched";
    const auto when = std::filesystem::last_write_time(touched);
    test::write_file(touched, "2");
    std::filesystem::last_write_time(touched, when);
    std::filesystem::remove(root / "link");
    std::filesystem::create_symlink("gone", root / "link");
    const auto found = changes(before, snapshot(root));
    const std::map<std::string, Change> expected{{"changed", Change::changed},
                                                 {"deep/er/new", Change::created},
                                                 {"deep/er/removed", Change::removed},
                                                 {"deep/touched", Change::changed},
                                                 {"link", Change::changed}};
    BOOST_TEST((found == expected));
}

BOOST_AUTO_TEST_CASE(no_link_is_followed_and_nothing_is_opened_that_waits) {
    const test::TemporaryDirectory place, elsewhere;
    const auto before = snapshot(place.path());
    test::write_file(elsewhere.path() / "secret", "1");
    std::filesystem::create_directory_symlink(elsewhere.path(), place.path() / "out");
    std::filesystem::create_directory_symlink(".", place.path() / "loop");
    BOOST_TEST_REQUIRE(::mkfifo((place.path() / "pipe").c_str(), 0600) == 0);
    const auto found = changes(before, snapshot(place.path()));
    const std::map<std::string, Change> expected{{"loop", Change::created},
                                                 {"out", Change::created}};
    BOOST_TEST((found == expected));
}

BOOST_AUTO_TEST_CASE(more_files_than_are_looked_at_are_no_changes) {
    const test::TemporaryDirectory place;
    const auto empty = snapshot(place.path());
    BOOST_TEST(empty.complete());
    std::filesystem::create_directory(place.path() / "many");
    test::write_file(place.path() / "first", "1");
    for (std::size_t i = 0; i < WorkspaceSnapshot::max_files; ++i) {
        const auto name = place.path() / "many" / std::to_string(i);
        ::close(::open(name.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    }
    const auto full = snapshot(place.path());
    BOOST_TEST(!full.complete());
    test::write_file(place.path() / "first", "22");
    const auto found = changes(full, snapshot(place.path()));
    BOOST_TEST(found.size() == 1U);
    BOOST_TEST(found.contains("first"));
    // Nothing was removed of which only the look is missing.
    BOOST_TEST(changes(full, empty).size() >= WorkspaceSnapshot::max_files - 10);
    BOOST_TEST(changes(empty, full).size() <= WorkspaceSnapshot::max_files);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace workspace_snapshot_tests
