#include <unistd.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/sandbox_kit/sandbox_config.hpp>

#include "test_support.hpp"

namespace sandbox_config_tests {

namespace {
using namespace ipybox;
namespace fs = std::filesystem;

struct Fixture {
    test::TemporaryDirectory workspace;
    test::TemporaryDirectory home;
    SandboxPolicy base;

    Fixture() {
        base.cwd = workspace.path();
        base.readable = {"/opt/python"};
        base.writable = {workspace.path()};
        base.hidden = {".env", "**/.env"};
        base.write_protected = {workspace.path() / ".env", workspace.path() / ".git/config"};
        base.env = {{"PATH", "/bin"}, {"HOME", "/home/user"}};
        base.limits.processes = 7;
    }
    SandboxPolicy apply(std::string_view text) {
        return apply_srt_settings(json::parse(text).as_object(), base, workspace.path(),
                                  home.path());
    }
    bool is_protected(const SandboxPolicy& policy, const fs::path& name) {
        // Itself, or as a part of what is protected as a whole.
        const auto& list = policy.write_protected;
        for (auto path = workspace.path() / name;
             path != workspace.path() && path.has_relative_path(); path = path.parent_path())
            if (std::find(list.begin(), list.end(), path) != list.end()) return true;
        return false;
    }
    void fails(std::string_view text, std::string_view words) {
        BOOST_CHECK_EXCEPTION(apply(text), Error, [&](const Error& error) {
            BOOST_TEST_INFO(error.what());
            return error.code() == errc::bad_config &&
                   error.detail().find(words) != std::string::npos;
        });
    }
};
}  // namespace

BOOST_FIXTURE_TEST_SUITE(sandbox_config, Fixture)

BOOST_AUTO_TEST_CASE(private_networks_are_an_option_of_every_sandbox) {
    const auto read = [](std::string_view text) {
        return private_networks_of(json::parse(text).as_object());
    };
    BOOST_TEST(read(R"({"bwrap": "/usr/bin/bwrap"})").empty());
    BOOST_TEST((read(R"({"private_networks": ["10.1.0.0/16", "fd00:1::/32"]})") ==
                std::vector<std::string>{"10.1.0.0/16", "fd00:1::/32"}));
    for (const char* wrong : {R"("10.1.0.0/16")", "[10]", "null"})
        BOOST_CHECK_EXCEPTION(read(R"({"private_networks": )" + std::string(wrong) + "}"), Error,
                              [](const Error& error) {
                                  return error.code() == errc::bad_config &&
                                         error.detail().find("private_networks") !=
                                             std::string::npos;
                              });
}

BOOST_AUTO_TEST_CASE(empty_settings_read_everything_and_write_nothing) {
    const auto policy = apply("{}");
    BOOST_TEST((policy.network.mode == NetworkPolicy::Mode::none));
    BOOST_TEST((policy.readable == std::vector<fs::path>{"/opt/python", "/", workspace.path()}));
    BOOST_TEST(policy.writable.empty());
    BOOST_TEST((policy.hidden == std::vector<std::string>{".env", "**/.env"}));
    BOOST_TEST(policy.shown.empty());
    BOOST_TEST(policy.cwd == workspace.path());
    BOOST_TEST(policy.limits.processes.value() == 7u);
    BOOST_TEST(policy.env.at("PATH") == "/bin");
    BOOST_TEST(policy.env.at("HOME") == (::geteuid() == 0 ? "/tmp" : home.path().string()));
    BOOST_TEST(is_protected(policy, ".env"));
}

BOOST_AUTO_TEST_CASE(paths_are_resolved_and_absent_write_paths_ignored) {
    fs::create_directory(workspace.path() / "out");
    fs::create_directory(home.path() / "cache");
    const auto policy = apply(R"({"filesystem": {
        "denyRead": [".env", "~/.ssh", "/etc/secrets", "keys/*.pem"], "allowRead": [".", "~/cache", "nowhere"],
        "allowWrite": [".", "out/", "~/cache", "/nowhere/at/all", "/dev/stdout"], "denyWrite": ["out/fixed", "/etc"]}})");
    const auto& ws = workspace.path();
    BOOST_TEST(
        (policy.hidden == std::vector<std::string>{".env", "**/.env", (ws / ".env").string(),
                                                   (home.path() / ".ssh").string(), "/etc/secrets",
                                                   (ws / "keys/*.pem").string()}));
    BOOST_TEST((policy.readable ==
                std::vector<fs::path>{"/opt/python", "/", ws, ws, home.path() / "cache"}));
    BOOST_TEST((policy.writable == std::vector<fs::path>{ws, ws / "out", home.path() / "cache"}));
    BOOST_TEST((policy.shown == std::vector<fs::path>{ws, home.path() / "cache"}));
    BOOST_TEST(is_protected(policy, "out/fixed"));
    BOOST_TEST(is_protected(policy, "/etc"));
}

BOOST_AUTO_TEST_CASE(names_srt_protects_are_protected_also_below) {
    fs::create_directories(workspace.path() / "a/b/c/d/.git");
    fs::create_directories(workspace.path() / "a/b/.git");
    fs::create_directories(workspace.path() / "a/node_modules/.git");
    test::write_file(workspace.path() / "a/.bashrc", "");
    fs::create_directory_symlink(workspace.path() / "a", workspace.path() / "link");
    auto policy = apply("{}");
    for (const auto* name : {".gitconfig",
                             ".gitmodules",
                             ".bashrc",
                             ".bash_profile",
                             ".zshrc",
                             ".zprofile",
                             ".profile",
                             ".ripgreprc",
                             ".mcp.json",
                             ".vscode",
                             ".idea",
                             ".claude/commands",
                             ".claude/agents",
                             ".git/hooks",
                             ".git/config",
                             ".git/commondir",
                             ".git/config.worktree",
                             "HEAD",
                             "a/b/.git/hooks",
                             "a/.bashrc"})
        BOOST_TEST(is_protected(policy, name), name);
    for (const auto* name :
         {"a/.profile", "a/b/c/d/.git/hooks", "a/node_modules/.git/hooks", "link/.bashrc"})
        BOOST_TEST(!is_protected(policy, name), name);
    policy = apply(R"({"mandatoryDenySearchDepth": 4, "filesystem": {"allowGitConfig": true}})");
    BOOST_TEST(is_protected(policy, "a/b/c/d/.git/hooks"));
    BOOST_TEST(is_protected(policy, ".git/hooks"));
    BOOST_TEST(!is_protected(policy, ".git/config"));
    BOOST_TEST(!is_protected(policy, "a/b/.git/config"));
    BOOST_TEST(!is_protected(policy, "HEAD"));
    fs::create_directory(workspace.path() / ".git");
    test::write_file(workspace.path() / ".git/HEAD", "ref: refs/heads/main\n");
    BOOST_TEST(!is_protected(apply("{}"), "HEAD"));
}

BOOST_AUTO_TEST_CASE(other_places_where_git_finds_commands_are_protected) {
    const auto git = workspace.path() / ".git";
    fs::create_directories(git / "modules/libs/one/modules/two");
    fs::create_directories(git / "worktrees/other");
    fs::create_directories(git / "objects/no");
    for (const auto* directory :
         {"modules/libs/one", "modules/libs/one/modules/two", "worktrees/other"})
        test::write_file(git / directory / "HEAD", "");
    test::write_file(git / "config",
                     "[user]\n\tname = hookspath\n[core]\n\tHooksPath = \"./.husky/_\"\n");
    const auto policy = apply("{}");
    for (const std::string directory :
         {".git/modules/libs/one", ".git/modules/libs/one/modules/two", ".git/worktrees/other"})
        for (const auto* name : {"/config", "/config.worktree", "/commondir", "/hooks"})
            BOOST_TEST(is_protected(policy, (directory + name).c_str()), directory << name);
    BOOST_TEST(is_protected(policy, ".husky/_"));
    BOOST_TEST(!is_protected(policy, ".git/modules/libs/hooks"));
    const auto open = apply(R"({"filesystem": {"allowGitConfig": true}})");
    BOOST_TEST(!is_protected(open, ".git/modules/libs/one/config"));
    BOOST_TEST(is_protected(open, ".git/modules/libs/one/hooks"));
    for (const auto* elsewhere : {"/etc/hooks", "../hooks", "~/hooks"}) {
        test::write_file(git / "config", "[core]\nhooksPath = " + std::string(elsewhere) + "\n");
        for (const auto& path : apply("{}").write_protected)
            BOOST_TEST(
                (path.filename() != "hooks" || path.string().find("/.git/") != std::string::npos),
                path);
    }
}

BOOST_AUTO_TEST_CASE(domains_make_an_allow_list) {
    const auto policy =
        apply(R"({"network": {"allowedDomains": ["example.com", "*.pypi.org", "localhost"],
                                              "deniedDomains": ["bad.example.com"]}})");
    BOOST_TEST((policy.network.mode == NetworkPolicy::Mode::allow_list));
    BOOST_TEST((policy.network.allow ==
                std::vector<std::string>{"example.com", "*.pypi.org", "localhost"}));
    BOOST_TEST((policy.network.deny == std::vector<std::string>{"bad.example.com"}));
    // An empty list must not mean an open network, whatever the base says.
    base.network.mode = NetworkPolicy::Mode::full;
    BOOST_TEST((apply(R"({"network": {"allowedDomains": []}})").network.mode ==
                NetworkPolicy::Mode::none));
    for (const char* domain :
         {"*", "*.com", "http://example.com", "example.com:0", "10.0.0.1", "a..b", "-a.com",
          "a.com\\u0000.b", "example.com/x", "*.*.com", "ex ample.com", "example.com.", "a.1",
          "a.0x1f", "com", "[2001:db8::1]:443"})
        fails(std::string(R"({"network": {"allowedDomains": ["ok.com", ")") + domain + R"("]}})",
              "/network/allowedDomains/1");
    // Ports as in srt, and a deny list may name everything.
    const auto ports = apply(R"({"network": {"allowedDomains": ["example.com:443", "*.a.org:8443"],
                                             "deniedDomains": ["*:25", "*"]}})");
    BOOST_TEST(
        (ports.network.allow == std::vector<std::string>{"example.com:443", "*.a.org:8443"}));
    BOOST_TEST((ports.network.deny == std::vector<std::string>{"*:25", "*"}));
}

BOOST_AUTO_TEST_CASE(settings_without_meaning_on_linux_are_accepted) {
    const auto policy =
        apply(R"({"allowPty": true, "ripgrep": {"command": "rg"}, "ignoreViolations": {"*": ["/x"]},
        "enableWeakerNestedSandbox": false, "network": {"allowedDomains": [], "deniedDomains": [],
        "allowLocalBinding": true, "allowAllUnixSockets": true, "allowUnixSockets": [], "strictAllowlist": true}})");
    BOOST_TEST((policy.network.mode == NetworkPolicy::Mode::none));
}

BOOST_AUTO_TEST_CASE(what_cannot_be_honoured_names_its_field) {
    fails(R"({"netwrok": {}})", "/netwrok: is not known here; accepted are network, filesystem");
    fails(R"({"network": {"allowed": []}})", "/network/allowed: is not known");
    fails(R"({"filesystem": {"allowwrite": []}})", "/filesystem/allowwrite");
    fails(R"({"network": []})", "/network: must be an object");
    fails(R"({"filesystem": {"allowWrite": "x"}})", "/filesystem/allowWrite: must be a list");
    fails(R"({"filesystem": {"allowWrite": [".", 1]}})",
          "/filesystem/allowWrite/1: must be a string");
    fails(R"({"filesystem": {"denyRead": [""]}})", "/filesystem/denyRead/0");
    fails(R"({"filesystem": {"allowWrite": ["*.txt"]}})", "/filesystem/allowWrite/0: wildcards");
    fails(R"({"network": {"httpProxyPort": 8080}})", "/network/httpProxyPort");
    fails(R"({"network": {"socksProxyPort": 8080}})", "/network/socksProxyPort");
    fails(R"({"network": {"allowUnixSockets": ["/run/docker.sock"]}})",
          "/network/allowUnixSockets");
    fails(R"({"enableWeakerNestedSandbox": true})",
          "/enableWeakerNestedSandbox: cannot be honoured");
    fails(R"({"allowPty": "yes"})", "/allowPty: must be true or false");
    fails(R"({"mandatoryDenySearchDepth": 0})",
          "/mandatoryDenySearchDepth: must be an integer from 1 to 10");
    fails(R"({"mandatoryDenySearchDepth": 2.5})", "/mandatoryDenySearchDepth");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace sandbox_config_tests
