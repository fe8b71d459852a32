#include <ipybox/tools/remembered_servers.hpp>

#include <boost/test/unit_test.hpp>

#include "test_support.hpp"

namespace remembered_servers_tests {

namespace {
using namespace ipybox;
namespace fs = std::filesystem;

struct Fixture {
    test::TemporaryDirectory directory;
    fs::path records = directory.path() / "config/ipybox/registered";
    fs::path home = directory.path() / "home";
    json::object params{{"command", "server"}, {"env", json::object{{"TOKEN", "${TOKEN}"}}}};

    fs::path make(const std::string& name) {
        const auto workspace = home / name;
        fs::create_directories(workspace);
        of(workspace).add("own", params);
        return workspace;
    }
    RememberedServers of(const fs::path& workspace) { return {file(workspace), workspace}; }
    fs::path file(const fs::path& workspace) {
        return records / RememberedServers::file_name(workspace);
    }
    // Nobody has used it for so long.
    void age(const fs::path& path, std::chrono::hours by) {
        fs::last_write_time(path, fs::file_time_type::clock::now() - by);
    }
    void age_all(std::chrono::hours by = RememberedServers::patience + std::chrono::hours(1)) {
        for (const auto& entry : fs::directory_iterator(records)) age(entry.path(), by);
    }
    // As the start of another workspace's session does it.
    void start() { of(home / "other").forget_gone(); }
};
}  // namespace

BOOST_FIXTURE_TEST_SUITE(remembered_servers, Fixture)

BOOST_AUTO_TEST_CASE(servers_come_back_as_they_were_given) {
    const auto workspace = make("work");
    of(workspace).add("second", params);
    auto changed = params;
    changed["command"] = "another";
    of(workspace).add("second", changed);
    const auto servers = of(workspace).read();
    BOOST_TEST(servers.size() == 2u);
    BOOST_TEST(servers.at("own").at("env").as_object().at("TOKEN").as_string() == "${TOKEN}");
    BOOST_TEST(servers.at("second").at("command").as_string() == "another");
    BOOST_TEST((fs::status(file(workspace)).permissions() ==
                (fs::perms::owner_read | fs::perms::owner_write)));
    BOOST_TEST(std::distance(fs::directory_iterator(records), fs::directory_iterator()) == 1);
    // By whatever name it is reached.
    fs::create_directory_symlink(workspace, home / "link");
    BOOST_TEST(of(home / "link").read().size() == 2u);
    BOOST_TEST(of(home / "elsewhere").read().empty());
    RememberedServers nowhere("", workspace);
    nowhere.add("own", params);
    nowhere.forget_gone();
    BOOST_TEST(nowhere.read().empty());
}

BOOST_AUTO_TEST_CASE(what_cannot_be_read_is_an_error_and_replaced) {
    const auto workspace = make("work");
    test::write_file(file(workspace), "{");
    BOOST_CHECK_THROW(of(workspace).read(), Error);
    of(workspace).add("own", params);
    BOOST_TEST(of(workspace).read().size() == 1u);
}

BOOST_AUTO_TEST_CASE(of_a_workspace_that_is_gone_they_are_forgotten_in_time) {
    const auto gone = make("gone"), below = make("tree/of/several"), there = make("there"),
               used = make("used");
    fs::remove_all(gone);
    fs::remove_all(home / "tree");
    age_all(RememberedServers::patience - std::chrono::hours(1));
    start();
    for (const auto& workspace : {gone, below, there}) BOOST_TEST(fs::exists(file(workspace)));
    age_all();
    fs::remove_all(used);
    of(used).forget_gone();  // its own use counts, too
    BOOST_TEST(!fs::exists(file(gone)));
    BOOST_TEST(!fs::exists(file(below)));
    BOOST_TEST(fs::exists(file(there)));
    BOOST_TEST(fs::exists(file(used)));
}

BOOST_AUTO_TEST_CASE(a_disk_that_is_not_mounted_is_not_gone) {
    const auto workspace = make("disk/work");
    // Another directory lies where the disk was.
    fs::rename(home / "disk", home / "unmounted");
    fs::create_directories(home / "disk");
    age_all();
    start();
    BOOST_TEST(fs::exists(file(workspace)));
    // Nor what something else lies before.
    fs::remove(home / "disk");
    test::write_file(home / "disk", "");
    start();
    fs::remove(home / "disk");
    fs::create_directory_symlink(home / "nowhere", home / "disk");
    start();
    BOOST_TEST(fs::exists(file(workspace)));
}

BOOST_AUTO_TEST_CASE(nothing_but_records_is_removed) {
    const auto gone = make("gone"), other = make("other-gone");
    fs::remove_all(home);
    const auto text = test::read_file(file(gone));
    const std::string digits(16, '0');
    // Of that workspace by what it says, and not by its name.
    test::write_file(records / (digits + ".json"), text);
    test::write_file(records / "notes.json", text);
    test::write_file(records / (digits + "0.json"), text);
    test::write_file(records / (digits.substr(1) + "1.json"), R"({"mcpServers": {}})");
    test::write_file(records / (digits.substr(1) + "2.json"), "no JSON");
    test::write_file(directory.path() / "kept.json", text);
    fs::remove(file(other));
    fs::create_symlink(directory.path() / "kept.json", file(other));
    age_all();
    age(directory.path() / "kept.json", RememberedServers::patience * 2);
    start();
    BOOST_TEST(!fs::exists(file(gone)));
    BOOST_TEST(fs::is_symlink(file(other)));
    BOOST_TEST(fs::exists(directory.path() / "kept.json"));
    BOOST_TEST(std::distance(fs::directory_iterator(records), fs::directory_iterator()) == 6);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace remembered_servers_tests
