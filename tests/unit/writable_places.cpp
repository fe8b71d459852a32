#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/json/parse.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/sandbox_kit/writable_places.hpp>

#include "place_fixture.hpp"

namespace writable_places_tests {

namespace {
using namespace ipybox;
namespace fs = std::filesystem;

struct Fixture : test::PlaceFixture {
    fs::path state = root / "state/ipybox";
    fs::path workspace = make("workspace");

    static SandboxPolicy policy(std::vector<fs::path> writable,
                                std::vector<fs::path> write_protected = {}) {
        SandboxPolicy made;
        made.writable = std::move(writable);
        made.write_protected = std::move(write_protected);
        return made;
    }
    // As another session finds it.
    std::optional<fs::path> holds(const fs::path& path) const {
        return WritablePlaces(state).holds(path);
    }
    void record(const SandboxPolicy& recorded) const { WritablePlaces(state).record(recorded); }
    // Nothing is answered or recorded, and the record is named.
    void is_not_trusted(std::string_view words) const {
        for (const auto says : {words, std::string_view("writable-places.json")}) {
            fails([&] { holds("/usr/bin/true"); }, errc::io_error, says);
            fails([&] { record(policy({workspace})); }, errc::io_error, says);
        }
    }
    fs::path recorded() const { return state / "writable-places.json"; }
};
}  // namespace

BOOST_FIXTURE_TEST_SUITE(writable_places, Fixture)

BOOST_AUTO_TEST_CASE(what_a_policy_makes_writable_is_held_by_later_sessions) {
    BOOST_TEST(!holds(workspace / "bin/tool"));
    BOOST_TEST(!fs::exists(state));
    record(policy({workspace}));
    for (const char* name : {"bin/tool", "a", ".venv/bin/python", "absent/x/y", "b/../c"})
        BOOST_TEST((holds(workspace / name) == workspace), name);
    BOOST_TEST((holds(workspace) == workspace));  // as a directory to start in, or of PATH
    BOOST_TEST((holds(workspace.string() + "/") == workspace));
    for (const fs::path& path : std::initializer_list<fs::path>{
             root, root / "workspace2", root / "other/x", fs::path("/usr/bin/true"), fs::path("/")})
        BOOST_TEST(!holds(path), path);
    BOOST_CHECK_THROW(holds("relative"), Error);
}

BOOST_AUTO_TEST_CASE(what_was_protected_throughout_counts_as_the_users) {
    record(policy({workspace},
                  {workspace / ".venv", workspace / "sub/tools", workspace / ".mcp.json"}));
    BOOST_TEST(!holds(workspace / ".venv/bin/python"));
    BOOST_TEST(!holds(workspace / ".venv"));
    BOOST_TEST((holds(workspace / ".venv2/bin/python") == workspace));
    // Code may rename the directory that holds the protected one.
    BOOST_TEST((holds(workspace / "sub/tools/x") == workspace));

    record(policy({workspace}, {workspace / ".venv/lib", workspace / "new"}));
    BOOST_TEST((holds(workspace / ".venv/bin/python") == workspace));
    BOOST_TEST((holds(workspace / "new/x") == workspace));
    record(policy({workspace}, {workspace / ".venv"}));
    BOOST_TEST((holds(workspace / ".venv/bin/python") == workspace));
    record(policy({workspace}));
    BOOST_TEST((holds(workspace / ".mcp.json") == workspace));
}

BOOST_AUTO_TEST_CASE(where_nothing_could_be_renamed_deep_paths_count_as_well) {
    const auto pinned = policy({workspace}, {workspace / "sub/tools"});
    const auto recorded_with = [&](bool pins) { WritablePlaces(state).record(pinned, pins); };
    recorded_with(true);
    BOOST_TEST(!holds(workspace / "sub/tools/x"));
    for (const char* name : {"sub", "sub/other", "sub/tools2"})
        BOOST_TEST((holds(workspace / name) == workspace), name);
    recorded_with(false);
    BOOST_TEST((holds(workspace / "sub/tools/x") == workspace));
    recorded_with(true);
    BOOST_TEST((holds(workspace / "sub/tools/x") == workspace));
}

BOOST_AUTO_TEST_CASE(nothing_below_a_protected_directory_was_writable) {
    record(policy({workspace, workspace / "kept/deep"}, {workspace / "kept"}));
    BOOST_TEST(!holds(workspace / "kept/deep/x"));
    // Until another policy makes just that writable.
    record(policy({workspace / "kept/deep"}));
    BOOST_TEST((holds(workspace / "kept/deep/x") == workspace / "kept/deep"));
    BOOST_TEST(!holds(workspace / "kept/x"));
}

BOOST_AUTO_TEST_CASE(every_link_on_the_way_is_judged) {
    const auto tool = file("safe/tool");
    fs::create_symlink(tool, workspace / "link");
    fs::create_directory_symlink(workspace, root / "alias");
    fs::create_symlink("alias/bin/tool", root / "to_tool");
    fs::create_directory_symlink("../safe", workspace / "safe");
    fs::create_symlink("loop", root / "loop");
    record(policy({root / "alias"}, {root / "alias/.venv"}));
    BOOST_TEST(!holds(tool));
    for (const fs::path& path :
         std::initializer_list<fs::path>{workspace / "link", root / "alias/x", root / "to_tool",
                                         workspace / "safe/tool", root / "safe/../alias/x"})
        BOOST_TEST((holds(path) == workspace), path);
    BOOST_TEST(!holds(root / "alias/.venv/bin/python"));
    BOOST_TEST(holds(root / "loop").has_value());
}

BOOST_AUTO_TEST_CASE(a_real_path_leads_over_no_link_that_code_could_have_made) {
    const auto elsewhere = make("elsewhere");
    fs::create_directory_symlink(elsewhere, root / "users");
    fs::create_directory_symlink(elsewhere, workspace / "link");
    fs::create_directory_symlink(workspace / "link", root / "to_link");
    fs::create_directory_symlink(elsewhere, make("workspace/kept") / "link");
    const auto real = [&](const fs::path& path) {
        return WritablePlaces(state).real_paths({workspace, path}).back();
    };
    BOOST_TEST((real(workspace / "link") == elsewhere));
    record(policy({workspace}, {workspace / "kept"}));
    BOOST_TEST((real(root / "users/./x") == elsewhere / "x"));
    BOOST_TEST((real(workspace / "absent/x") == workspace / "absent/x"));
    BOOST_TEST((real(workspace / "kept/link") == elsewhere));
    for (const auto& path : {workspace / "link", workspace / "link/deep", root / "to_link"})
        fails([&] { real(path); }, errc::sandbox_refused,
              path.string() + " leads over the link " + (workspace / "link").string() +
                  ", which code in a sandbox may have put there");
    fs::rename(workspace, root / "moved");
    fails([&] { real(root / "moved/link"); }, errc::sandbox_refused, "over the link");
    BOOST_TEST((WritablePlaces(state).paths() == std::vector<fs::path>{workspace}));
}

BOOST_AUTO_TEST_CASE(links_that_cannot_be_protected_or_believed_count_as_written) {
    fs::create_directory_symlink(make("elsewhere"), workspace / ".venv");
    fs::create_directory_symlink(make("elsewhere"), workspace / "linked");
    record(policy({workspace},
                  {workspace / ".venv", workspace / "linked/tools", workspace / "absent"}));
    BOOST_TEST((holds(workspace / ".venv/bin/python") == workspace));
    BOOST_TEST((holds(workspace / "linked/tools") == workspace));
    BOOST_TEST(!holds(workspace / "absent/x"));
    // As root sees a guest's files.
    const auto guest = "/proc/" + std::to_string(::getpid()) + "/root/tmp/tool";
    BOOST_TEST(holds(guest).has_value());
    fs::create_symlink(guest, root / "to_guest");
    BOOST_TEST(holds(root / "to_guest").has_value());
}

BOOST_AUTO_TEST_CASE(a_place_that_was_moved_is_still_one) {
    record(policy({workspace}, {workspace / ".venv"}));
    if (detail::path_status(workspace).id.born == 0) return;  // this file system has no birth times
    fs::rename(workspace, root / "moved");
    BOOST_TEST((holds(root / "moved/tool") == root / "moved"));
    BOOST_TEST(!holds(root / "moved/.venv/bin/python"));
    BOOST_TEST((holds(workspace / "tool") == workspace));
    // What is at its old path now has a record of its own.
    fs::create_directories(workspace);
    record(policy({workspace}));
    BOOST_TEST((holds(workspace / ".venv/x") == workspace));
}

BOOST_AUTO_TEST_CASE(names_are_bytes) {
    const auto odd = make("odd \xff\"\n");
    record(policy({odd}, {odd / "\xfe.venv"}));
    BOOST_TEST((holds(odd / "tool") == odd));
    BOOST_TEST(!holds(odd / "\xfe.venv/python"));
}

BOOST_AUTO_TEST_CASE(sessions_write_side_by_side) {
    constexpr int writers = 8, each = 10;
    for (int writer = 0; writer < writers; ++writer)
        if (::fork() == 0) {
            WritablePlaces places(state);
            for (int i = 0; i < each; ++i)
                places.record(
                    policy({root / ("w" + std::to_string(writer) + "-" + std::to_string(i))}));
            ::_exit(0);
        }
    for (int status = 0, writer = 0; writer < writers; ++writer) {
        BOOST_REQUIRE(::wait(&status) > 0);
        BOOST_TEST(status == 0);
    }
    for (int writer = 0; writer < writers; ++writer)
        for (int i = 0; i < each; ++i)
            BOOST_TEST(holds(root / ("w" + std::to_string(writer) + "-" + std::to_string(i)) / "x")
                           .has_value());
    struct stat found{};
    BOOST_REQUIRE(::stat(recorded().c_str(), &found) == 0);
    BOOST_TEST((found.st_mode & 07777) == 0600u);
}

BOOST_AUTO_TEST_CASE(another_process_is_seen_at_once) {
    const WritablePlaces places(state);
    BOOST_TEST(!places.holds(workspace / "x"));
    record(policy({workspace}));
    BOOST_TEST(places.holds(workspace / "x").has_value());
    fs::remove(recorded());
    BOOST_TEST(!places.holds(workspace / "x"));
}

BOOST_AUTO_TEST_CASE(what_this_process_recorded_counts_without_the_file) {
    WritablePlaces places(state);
    places.record(policy({workspace}));
    fs::remove(recorded());
    BOOST_TEST(places.holds(workspace / "x").has_value());
}

BOOST_AUTO_TEST_CASE(a_record_that_cannot_be_trusted_stops_everything) {
    record(policy({workspace}));
    for (const char* text :
         {"", "{", "[]", "{\"places\": 1}", "{\"places\": [{}]}", "{\"places\": [1]}",
          "{\"places\": [{\"path\": \"relative\", \"protected\": []}]}",
          "{\"places\": [{\"path\": \"/x\", \"protected\": [1]}]}"}) {
        BOOST_TEST_CONTEXT(text) {
            test::write_file(recorded(), text);
            is_not_trusted("repair it, or remove it");
        }
    }
    test::write_file(recorded(), "{\"places\": []}");
    BOOST_TEST(!holds(workspace));
    fs::permissions(recorded(), fs::perms(0622));
    is_not_trusted("can be written by other users");
    fs::remove(recorded());
    fs::create_symlink(file("elsewhere.json", "{\"places\": []}"), recorded());
    is_not_trusted("cannot be read");
    fs::remove(recorded());
    fs::create_directory(recorded());
    is_not_trusted("is no regular file");
    fs::remove(recorded());
    BOOST_REQUIRE(::mkfifo(recorded().c_str(), 0600) == 0);
    is_not_trusted("is no regular file");
    fs::remove(recorded());
    record(policy({workspace}));
    BOOST_TEST(holds(workspace).has_value());
}

BOOST_AUTO_TEST_CASE(without_a_directory_this_process_remembers_and_says_so) {
    for (const auto& nowhere :
         {fs::path(), fs::path("/proc/none/ipybox"), file("plain") / "ipybox"}) {
        WritablePlaces places(nowhere);
        places.record(policy({workspace}));
        BOOST_TEST(places.holds(workspace / "x").has_value(), nowhere);
        BOOST_TEST(places.problem().find("XDG_STATE_HOME") != std::string::npos, places.problem());
    }
    WritablePlaces places(state);
    places.record(policy({workspace}));
    BOOST_TEST(places.problem() == "");
}

BOOST_AUTO_TEST_CASE(what_code_without_a_sandbox_could_write_is_told_from_what_other_code_could) {
    using sandbox_kit::Writer;
    const auto by = [&](Writer writer, const char* name) {
        return WritablePlaces(state).holds(workspace / name, writer).has_value();
    };
    const auto both = [&](const char* name) {
        return std::pair(by(Writer::any, name), by(Writer::confined, name));
    };
    WritablePlaces(state).record(policy({workspace}), false, false);
    BOOST_TEST((both("own.json") == std::pair(true, false)));
    record(policy({workspace}, {workspace / "own.json", workspace / ".env"}));
    WritablePlaces(state).record(policy({workspace}), false, false);
    BOOST_TEST((both("own.json") == std::pair(true, false)));
    BOOST_TEST((both("planted.json") == std::pair(true, true)));
    // As it was recorded before: `.env` is kept in every sandbox.
    for (const std::string_view kept : {R"([".env"])", "[]"}) {
        test::write_file(recorded(), R"({"places": [{"path": ")" + workspace.string() +
                                         R"(", "protected": )" + std::string(kept) + "}]}");
        BOOST_TEST((both("planted.json") == std::pair(true, kept != "[]")));
    }
}

BOOST_AUTO_TEST_CASE(the_record_is_bounded_and_forgets_nothing_that_is_there) {
    WritablePlaces places(state);
    SandboxPolicy gone, all;
    for (int i = 0; i < 600; ++i) gone.writable.push_back(root / ("gone" + std::to_string(i)));
    places.record(gone);
    places.record(policy({workspace}, {workspace / ".venv"}));
    const auto many = make("many");
    for (int i = 0; i < 600; ++i) {
        const auto place = make("many/" + std::to_string(i));
        all.writable.push_back(place);
        all.write_protected.push_back(place / ".venv");
    }
    places.record(all);
    BOOST_TEST(json::parse(test::read_file(recorded())).at("places").as_array().size() <= 512u);
    for (int i = 0; i < 600; ++i) BOOST_TEST(holds(many / std::to_string(i) / "x").has_value());
    BOOST_TEST((holds(workspace / "x") == workspace));
    BOOST_TEST(!holds(workspace / ".venv/x"));

    // What code makes by the thousand does not push the record beyond what is read.
    SandboxPolicy wide = policy({workspace}, {workspace / ".venv"});
    for (int i = 0; i < 10'000; ++i)
        wide.write_protected.push_back(workspace / std::string(200, 'x') / std::to_string(i) /
                                       ".mcp.json");
    const auto before = fs::file_size(recorded());
    places.record(wide);
    BOOST_TEST(fs::file_size(recorded()) < before + (1 << 20));
    BOOST_TEST(!holds(workspace / ".venv/x"));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace writable_places_tests
