#include <sys/stat.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <ipybox/sandbox_kit/guest_view.hpp>
#include <memory>
#include <string>

#include "ordinary_user.hpp"
#include "place_fixture.hpp"

namespace guest_view_tests {

namespace {
using namespace ipybox;
using sandbox_kit::View;
namespace fs = std::filesystem;

struct Fixture : test::PlaceFixture {
    fs::path workspace = make("workspace");
    SandboxPolicy policy;

    Fixture() {
        policy.writable = {workspace};
        policy.cwd = workspace;
        policy.hidden = {"**/.env"};
    }
    bool hides(const View& view, const fs::path& name) const {
        const auto found = view.mounts().find(workspace / name);
        return found != view.mounts().end() && found->second == View::Kind::hidden;
    }
    bool pins(const View& view, const fs::path& name) const {
        return view.inner_mounts().contains(workspace / name);
    }
};
}  // namespace

BOOST_FIXTURE_TEST_SUITE(guest_view, Fixture)

BOOST_AUTO_TEST_CASE(policies_differ_in_what_they_allow_and_not_in_where_an_answer_goes) {
    auto other = policy;
    other.behind_links = std::make_shared<HiddenBehindLinks>();
    BOOST_TEST((other == policy));
    other.hidden.clear();
    BOOST_TEST((other != policy));
}

// Whoever owns a directory can keep the host out of it, and open it again later.
BOOST_AUTO_TEST_CASE(directories_that_keep_the_search_out_are_hidden_as_a_whole) {
    for (const char* name : {"around/listed/.env", "around/shut/.env", "around/deeper/on/.env"})
        file(fs::path("workspace") / name);
    const test::OrdinaryUser user(root);
    fs::permissions(workspace / "around/listed", fs::perms(0444));
    fs::permissions(workspace / "around/shut", fs::perms(0));
    fs::permissions(workspace / "around/deeper", fs::perms(0644));
    const View view(policy);
    for (const char* name : {"listed", "shut", "deeper"})
        fs::permissions(workspace / "around" / name, fs::perms(0755));
    for (const char* name : {"around/listed", "around/shut", "around/deeper"})
        BOOST_TEST(hides(view, name), name);
    // Renamed, it could be moved past another search.
    BOOST_TEST(pins(view, "around"));
}

BOOST_AUTO_TEST_CASE(what_is_named_or_protected_in_such_a_directory_hides_it_too) {
    file("workspace/named/secret");
    file("workspace/kept/settings");
    const test::OrdinaryUser user(root);
    policy.hidden = {"named/secret"};
    policy.write_protected = {workspace / "kept/settings"};
    for (const char* name : {"named", "kept"}) fs::permissions(workspace / name, fs::perms(0444));
    const View view(policy);
    for (const char* name : {"named", "kept"}) {
        fs::permissions(workspace / name, fs::perms(0755));
        BOOST_TEST(hides(view, name), name);
    }
}

BOOST_AUTO_TEST_CASE(a_link_through_such_a_directory_is_refused_where_code_could_open_it) {
    file("workspace/secrets/settings");
    file("elsewhere/settings");
    make("workspace/app");
    make("workspace/other");
    fs::create_symlink("../secrets/settings", workspace / "app/.env");
    fs::create_symlink(root / "elsewhere/settings", workspace / "other/.env");
    const test::OrdinaryUser user(root);
    fs::permissions(root / "elsewhere", fs::perms(0));
    const View before(policy);
    BOOST_TEST(hides(before, "secrets/settings"));
    fs::permissions(workspace / "secrets", fs::perms(0444));
    fails([this] { View{policy}; }, errc::sandbox_refused, "app/.env leads to ");
    fails([this] { View{policy}; }, errc::sandbox_refused, "chmod u+rx");
    fs::permissions(workspace / "secrets", fs::perms(0755));
    fs::permissions(root / "elsewhere", fs::perms(0755));
}

BOOST_AUTO_TEST_CASE(a_workspace_that_keeps_the_search_out_is_refused) {
    file("workspace/.env");
    const test::OrdinaryUser user(root);
    fs::permissions(workspace, fs::perms(0444));
    fails([this] { View{policy}; }, errc::sandbox_refused, "chmod u+rx");
    fs::permissions(workspace, fs::perms(0755));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace guest_view_tests
