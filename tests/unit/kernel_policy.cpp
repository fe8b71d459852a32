#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/sandbox_kit/kernel_policy.hpp>

#include "place_fixture.hpp"

namespace kernel_policy_tests {

namespace {
using namespace ipybox;
namespace fs = std::filesystem;

struct Fixture : test::PlaceFixture {
    PolicySources sources;

    Fixture() {
        sources.workspace = make("workspace");
        sources.own = {make("home/.config/ipybox"), make("home/.local/share/ipybox")};
        sources.homes = {root / "home"};
    }
    void settings(std::string_view text) { sources.settings = json::parse(text).as_object(); }
    KernelPolicy policy() const { return KernelPolicy(sources); }
    bool reads(const fs::path& path) const { return policy().may_read(path); }
    bool writes(const fs::path& path) const { return policy().may_write(path); }
    bool is_protected(const fs::path& path) const {
        const auto made = policy();
        const auto& list = made.policy().write_protected;
        return std::find(list.begin(), list.end(), path) != list.end();
    }
};
}  // namespace

BOOST_FIXTURE_TEST_SUITE(kernel_policy, Fixture)

BOOST_AUTO_TEST_CASE(the_same_holds_for_files_as_for_the_code) {
    BOOST_TEST(reads("data.csv"));
    BOOST_TEST(writes("data.csv"));
    BOOST_TEST(!reads(".env"));
    BOOST_TEST(!reads("a/b/.env"));
    BOOST_TEST(!reads("a/.env/inside"));
    BOOST_TEST(reads("a/env"));
    for (const char* name :
         {".env", "a/.env", ".venv/bin/python", ".git/config", ".git/hooks/pre-commit", ".mcp.json",
          ".vscode/tasks.json", ".claude/settings.json", "HEAD"})
        BOOST_TEST(!writes(name), name);
    BOOST_TEST(reads(".git/config"));
    // As a file it would lead git to another repository.
    BOOST_TEST(!writes(".git"));
    BOOST_TEST(!writes(root / "outside"));
}

BOOST_AUTO_TEST_CASE(the_name_of_the_workspace_is_no_pattern) {
    for (const char* name : {"set [1]", "star*", "what?", "back\\slash", "[!a]"}) {
        sources.workspace = make(name);
        test::write_file(sources.workspace / ".env", "x");
        fs::create_directories(sources.workspace / "sub");
        test::write_file(sources.workspace / "sub/.env", "x");
        BOOST_TEST(!reads(".env"), name);
        BOOST_TEST(!reads("sub/.env"), name);
        BOOST_TEST(!writes("sub/.env"), name);
        BOOST_TEST(reads("sub/env"), name);
        sandbox_kit::View view(policy().policy(), false);
        for (const char* file : {".env", "sub/.env"}) {
            const auto place = sources.workspace / file;
            BOOST_REQUIRE(view.mounts().contains(place));
            BOOST_TEST((view.kind(place) == sandbox_kit::View::Kind::hidden), place);
        }
        settings(R"({"filesystem": {"allowWrite": ["."], "denyRead": ["keys/*.pem"]}})");
        BOOST_TEST(!reads("keys/a.pem"), name);
        BOOST_TEST(reads("keys/a.txt"), name);
        sources.settings.reset();
    }
    // What a pattern would have meant.
    make("set 1");
    test::write_file(root / "set 1/.env", "x");
    sources.workspace = root / "set [1]";
    sandbox_kit::View view(policy().policy(), false);
    BOOST_TEST(!view.mounts().contains(root / "set 1/.env"));
}

BOOST_AUTO_TEST_CASE(settings_add_to_what_is_hidden) {
    test::write_file(sources.workspace / ".env", "x");
    settings(R"({"filesystem": {"allowWrite": ["."], "denyRead": ["private"]}})");
    BOOST_TEST(!reads(".env"));
    BOOST_TEST(!reads("sub/.env"));
    BOOST_TEST(!reads("private/key"));
    for (const auto& own : sources.own) BOOST_TEST(!reads(own / "tokens.json"));
    // A directory that holds one does not open it, its name does.
    settings(R"({"filesystem": {"allowWrite": ["."], "allowRead": ["."]}})");
    BOOST_TEST(!reads(".env"));
    settings(R"({"filesystem": {"allowWrite": ["."], "allowRead": [".env"]}})");
    BOOST_TEST(reads(".env"));
    BOOST_TEST(!reads("sub/.env"));
    BOOST_TEST(!writes(".env"));
    settings(
        R"({"filesystem": {"allowWrite": ["."], "allowRead": [".env"], "denyRead": [".env"]}})");
    BOOST_TEST(!reads(".env"));
    settings(R"({"filesystem": {"allowWrite": ["out"]}})");
    make("workspace/out");
    BOOST_TEST(writes("out/x"));
    BOOST_TEST(!writes("x"));
}

BOOST_AUTO_TEST_CASE(no_setting_opens_what_is_ipybox_s_own) {
    const auto tokens = sources.own[1] / "tokens.json";
    test::write_file(tokens, "{}");
    sources.audit_log = root / "logs/audit.jsonl";
    make("logs");
    test::write_file(sources.audit_log, "");
    for (const auto& path : {tokens, sources.own[1]}) {
        settings(R"({"filesystem": {"allowRead": [")" + path.string() + R"("]}})");
        fails([&] { policy(); }, errc::bad_argument, "lies in ipybox's own directory");
        settings(R"({"filesystem": {"allowWrite": [")" + path.string() + R"("]}})");
        fails([&] { policy(); }, errc::bad_argument, "lies in ipybox's own directory");
    }
    // Under another name, too.
    fs::create_directory_symlink(sources.own[1], root / "alias");
    settings(R"({"filesystem": {"allowRead": [")" + (root / "alias").string() + R"("]}})");
    fails([&] { policy(); }, errc::bad_argument, "lies in ipybox's own directory");
    fs::create_directory_symlink(root / "home/.local", root / "local");
    settings(R"({"filesystem": {"allowWrite": [")" + (root / "local").string() + R"("]}})");
    BOOST_TEST(!reads(root / "local/share/ipybox/tokens.json"));
    BOOST_TEST(!writes(root / "local/share/ipybox/tokens.json"));
    BOOST_TEST(writes(root / "local/other"));
    for (const char* key : {"allowRead", "allowWrite"}) {
        settings(R"({"filesystem": {")" + std::string(key) + R"(": [")" +
                 sources.audit_log.string() + R"("]}})");
        BOOST_TEST(!reads(sources.audit_log));
        BOOST_TEST(!writes(sources.audit_log));
    }
    settings(R"({"filesystem": {"allowWrite": [")" + (root / "logs").string() + R"("]}})");
    BOOST_TEST(!writes(sources.audit_log));
    BOOST_TEST(writes(root / "logs/other"));
    sandbox_kit::View view(policy().policy(), false);
    BOOST_TEST((view.kind(sources.audit_log) == sandbox_kit::View::Kind::hidden));
}

BOOST_AUTO_TEST_CASE(own_directories_are_found_where_they_really_lie) {
    const auto dotfiles = make("workspace/dotfiles");
    sources.own = {root / "home2/.config/ipybox"};
    make("home2");
    fs::create_directory_symlink(dotfiles, root / "home2/.config");
    BOOST_TEST(!reads("dotfiles/ipybox/always.json"));
    BOOST_TEST(!writes("dotfiles/ipybox/registered/x.json"));
    BOOST_TEST(writes("dotfiles/other"));
    // Made, so that code cannot, and ipybox still can.
    struct stat found{};
    BOOST_REQUIRE(::stat((dotfiles / "ipybox").c_str(), &found) == 0);
    BOOST_TEST((found.st_mode & 0777) == 0700u);
    sandbox_kit::View view(policy().policy(), false);
    BOOST_TEST((view.kind(dotfiles / "ipybox") == sandbox_kit::View::Kind::hidden));
    BOOST_TEST(view.mounts().contains(dotfiles));  // cannot be renamed
    // A link that code could exchange leads anywhere.
    make("elsewhere/ipybox");
    fs::create_directory_symlink(root / "elsewhere", sources.workspace / "link");
    fs::remove(root / "home2/.config");
    fs::create_directory_symlink(sources.workspace / "link", root / "home2/.config");
    fails([&] { policy(); }, errc::sandbox_refused,
          "is reached over the link " + (sources.workspace / "link").string());
}

BOOST_AUTO_TEST_CASE(what_lay_behind_a_link_that_is_gone_is_held_in_a_directory) {
    const auto link = sources.workspace / "sub";
    sources.write_protected = {link / "held"};
    fs::create_directory_symlink("..", link);
    const auto made = policy();
    const std::set<fs::path> layered = {sources.workspace};
    fails([&] { sandbox_kit::View(made.policy(), false, layered); }, errc::sandbox_refused,
          link.string() + " is a symbolic link");
    fs::remove(link);
    sandbox_kit::View view(made.policy(), false, layered);
    const auto& held = view.layers().at(sources.workspace);
    BOOST_TEST(std::count(held.begin(), held.end(), "sub/") == 1);
    BOOST_TEST(std::count(held.begin(), held.end(), "sub") == 0);
}

BOOST_AUTO_TEST_CASE(a_home_is_no_workspace_and_is_protected_in_one) {
    const auto refused = [&] { refuse_home(sources); };
    BOOST_CHECK_NO_THROW(refused());
    sources.workspace = root / "home";
    fails(refused, errc::sandbox_refused, "is a home directory");
    sources.workspace = root;
    fails(refused, errc::sandbox_refused, "holds a home directory");
    sources.workspace = make("home/project");
    BOOST_CHECK_NO_THROW(refused());
    sources.working_dir = root / "home";
    fails(refused, errc::sandbox_refused, "is a home directory");
    sources.working_dir.clear();

    sources.workspace = root / "home";
    make("home/.tool");
    for (const char* name :
         {".local/bin/bwrap", ".ssh/authorized_keys", ".npmrc", ".config/x", ".bash_login",
          ".tool/rc", ".local/lib/python3.11/site-packages/usercustomize.py"})
        BOOST_TEST(!writes(name), name);
    BOOST_TEST(writes("notes.txt"));
    BOOST_TEST(writes(".ipybox/site-packages/x.py"));
    BOOST_TEST(!reads(".config/ipybox/always.json"));
    // By name, in settings of another workspace.
    sources.workspace = root / "workspace";
    settings(R"({"filesystem": {"allowWrite": [".", ")" + (root / "home").string() + R"("]}})");
    BOOST_TEST(!writes(root / "home/.ssh/config"));
    settings(R"({"filesystem": {"allowWrite": [".", ")" + (make("home/.cache/mine")).string() +
             R"("]}})");
    BOOST_TEST(writes(root / "home/.cache/mine/x"));
}

BOOST_AUTO_TEST_CASE(the_interpreter_in_the_workspace_is_out_of_reach) {
    sources.interpreter = {make("workspace/tools/python/lib")};
    BOOST_TEST(!writes("tools/python/lib/evil.pth"));
    BOOST_TEST(!writes("tools/python/lib"));
    BOOST_TEST(!writes("tools"));  // a file in the place of the directory
    BOOST_TEST(writes("tools/other"));
    BOOST_TEST(reads("tools/python/lib/os.py"));
    BOOST_TEST(is_protected(sources.interpreter[0]));
}

BOOST_AUTO_TEST_CASE(directories_for_the_code_are_made_without_links) {
    const auto made = policy();
    const auto in = [](const UniqueFd& handle) {
        return fs::read_symlink("/proc/self/fd/" + std::to_string(handle.get()));
    };
    BOOST_TEST(in(made.open_for_writing("images", "a.png")) == sources.workspace / "images");
    BOOST_TEST(in(made.open_for_writing(sources.workspace / "b/c", "x")) ==
               sources.workspace / "b/c");
    BOOST_TEST(in(made.open_for_writing(root / "outside/d", "x")) == root / "outside/d");
    make("evil");
    fs::create_directory_symlink(root / "evil", sources.workspace / "link");
    fs::create_directory_symlink(sources.workspace, root / "to_workspace");
    const fs::path ways[] = {"link", "link/deeper", sources.workspace / "link",
                             root / "to_workspace/link"};
    for (const auto& path : ways)
        fails([&] { made.open_for_writing(path, "x"); }, errc::denied, "leads over the link");
    BOOST_TEST(fs::is_empty(root / "evil"));
    const std::pair<const char*, const char*> attacks[] = {{".git", "hooks"},  {".git/hooks", "x"},
                                                           {".venv/lib", "x"}, {".", "HEAD"},
                                                           {".", ".git"},      {"sub", ".env"}};
    for (const auto& attack : attacks)
        fails([&] { made.open_for_writing(attack.first, attack.second); }, errc::denied,
              "is protected");
    fails([&] { made.open_for_writing(root / "to_workspace/.git", "hooks"); }, errc::denied,
          "is protected");
    BOOST_TEST(!fs::exists(sources.workspace / ".git"));
}

BOOST_AUTO_TEST_CASE(what_code_left_does_not_stop_the_next_start) {
    // Links in the places of names that are protected where they exist.
    make("workspace/sub");
    fs::create_symlink("nowhere", sources.workspace / "sub/.bashrc");
    make("workspace/.git/modules/new");
    test::write_file(sources.workspace / ".git/modules/new/HEAD", "");
    fs::create_directory_symlink("/tmp", sources.workspace / ".git/modules/new/hooks");
    // A tree deeper than any path may be.
    UniqueFd at = detail::open_directory(make("workspace/deep"));
    const std::string name(200, 'd');
    for (int i = 0; i < 40; ++i) {
        BOOST_REQUIRE(::mkdirat(at.get(), name.c_str(), 0755) == 0);
        at = detail::open_beneath(at.get(), name, O_RDONLY | O_DIRECTORY);
    }
    const UniqueFd secret(::openat(at.get(), ".env", O_CREAT | O_WRONLY, 0644));
    BOOST_REQUIRE(secret);
    for (const char* text : {"", R"({"filesystem": {"allowWrite": ["."]}})"}) {
        if (*text != 0) settings(text);
        const auto made = policy();
        // Of one kind, and told as one.
        const auto& left_out = made.protected_files().left_out;
        BOOST_REQUIRE(left_out.size() == 1u);
        BOOST_TEST(left_out[0].find(" and 1 more: is a symbolic link") != std::string::npos,
                   left_out[0]);
        sandbox_kit::View view(made.policy(), false);
        std::size_t longest = 0, closed = 0;
        for (const auto& [path, rule] : view.mounts()) {
            longest = std::max(longest, path.native().size());
            closed += detail::within(path, sources.workspace / "deep") &&
                              rule == sandbox_kit::View::Kind::hidden
                          ? 1
                          : 0;
        }
        BOOST_TEST(longest < 3900u);
        BOOST_TEST(closed == 1u);  // the rest of the tree, as a whole
    }
}

BOOST_AUTO_TEST_CASE(a_link_called_env_hides_no_program) {
    const auto python = make("python");
    test::write_file(python / "json.py", "");
    test::write_file(sources.workspace / "secrets", "");
    make("workspace/a");
    make("workspace/b");
    make("workspace/c");
    fs::create_symlink(python / "json.py", sources.workspace / "a/.env");
    fs::create_symlink(sources.workspace / "secrets", sources.workspace / "b/.env");
    fs::create_symlink("/usr/bin/env", sources.workspace / "c/.env");
    sources.interpreter = {python};
    for (const char* text : {"", R"({"filesystem": {"allowWrite": ["."]}})"}) {
        if (*text != 0) settings(text);
        sandbox_kit::View view(policy().policy(), false);
        BOOST_TEST(!view.mounts().contains(python / "json.py"));
        BOOST_TEST(!view.mounts().contains(fs::canonical("/usr/bin/env")));
        BOOST_TEST(view.mounts().contains(sources.workspace / "secrets"));
    }
}

BOOST_AUTO_TEST_CASE(what_a_hidden_link_leads_to_is_read_by_nobody) {
    for (const char* name : {"other/deep", "sub", "top", "plain"})
        make(fs::path("workspace") / name);
    const auto in = [&](const char* name) { return sources.workspace / name; };
    for (const char* name : {"other/deep/file", "top/secrets", "plain/file", "plain/program"})
        test::write_file(in(name), "x");
    fs::create_symlink("../other/deep/file", in("sub/.env"));
    fs::create_symlink("secrets", in("top/.env"));
    fs::create_symlink("file", in("plain/link"));
    fs::create_symlink("/usr/bin/env", in("plain/.env"));
    for (const char* text : {"", R"({"filesystem": {"allowWrite": ["."]}})"}) {
        if (*text != 0) settings(text);
        const auto made = policy();
        sandbox_kit::View view(made.policy(), false);
        for (const char* name : {"other/deep/file", "top/secrets"}) {
            BOOST_TEST((view.kind(in(name)) == sandbox_kit::View::Kind::hidden), name);
            BOOST_TEST(!made.may_read(name), name);
            BOOST_TEST(!made.may_write(name), name);
        }
        BOOST_TEST(made.may_read("plain/file"));
        BOOST_TEST(made.may_read("other/deep/new"));
        BOOST_TEST(made.may_write("other/deep/new"));
        fails([&] { made.open_for_writing("other/deep/file"); }, errc::denied, "is protected");
    }
    sources.settings.reset();

    // The link is the code's to remove, and what holds the file is its to rename: neither opens it.
    const auto made = policy();
    const sandbox_kit::View guest(made.policy(), false);
    fs::remove(in("sub/.env"));
    fs::rename(in("other"), in("sub/renamed"));
    BOOST_TEST(!made.may_read("sub/renamed/deep/file"));
    struct stat opened{};
    BOOST_REQUIRE(::stat(in("sub/renamed/deep/file").c_str(), &opened) == 0);
    BOOST_TEST(!made.may_read(opened));
    BOOST_REQUIRE(::stat(in("plain/file").c_str(), &opened) == 0);
    BOOST_TEST(made.may_read(opened));
    // The next kernel finds no link, and reads it.
    BOOST_TEST(reads("sub/renamed/deep/file"));

    // By its name it is opened for both.
    settings(R"({"filesystem": {"allowWrite": ["."], "allowRead": ["top/secrets"]}})");
    const auto opening = policy();
    BOOST_TEST(opening.may_read("top/secrets"));
    sandbox_kit::View view(opening.policy(), false);
    BOOST_TEST(!(view.mounts().contains(in("top/secrets")) &&
                 view.kind(in("top/secrets")) == sandbox_kit::View::Kind::hidden));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kernel_policy_tests
