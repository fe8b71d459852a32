#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <filesystem>
#include <ipybox/detail/within.hpp>
#include <ipybox/sandbox_kit/detail/host_run_files.hpp>
#include <ipybox/sandbox_kit/file_watch.hpp>
#include <ipybox/sandbox_kit/protected_files.hpp>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "ordinary_user.hpp"
#include "test_support.hpp"

namespace protected_files_tests {

using namespace ipybox;
using namespace ipybox::detail;
using namespace ipybox::sandbox_kit;
namespace fs = std::filesystem;

namespace {
struct Fixture {
    test::TemporaryDirectory directory;
    fs::path top = fs::canonical(directory.path());
    ProtectionRules rules;
    ProtectedFiles found;

    void file(const std::string& name, std::string_view text = "x", bool executable = false) {
        fs::create_directories((top / name).parent_path());
        test::write_file(top / name, std::string(text));
        if (executable) fs::permissions(top / name, fs::perms::owner_all);
    }
    void repository(const std::string& name, std::string_view config = "") {
        file(name + "/HEAD", "ref: refs/heads/main\n");
        fs::create_directories(top / name / "objects");
        fs::create_directories(top / name / "refs");
        fs::create_directories(top / name / "hooks");
        file(name + "/config", config);
    }
    void search() { found = protected_files(top, rules); }
    void search_in(const char* part) { found = protected_files(top / part, rules); }
    bool has(const fs::path& name) const {
        return std::find(found.paths.begin(), found.paths.end(), top / name) != found.paths.end();
    }
    std::string left_out() const {
        std::string all;
        for (const auto& text : found.left_out) all += text + "\n";
        return all;
    }
    // What a watch tells, as "+new" and "~changed".
    static std::set<std::string> told(const std::vector<FileChange>& changes) {
        std::set<std::string> all;
        for (const auto& change : changes) all.insert((change.is_new ? "+" : "~") + change.path);
        return all;
    }
};
using Told = std::set<std::string>;
}  // namespace

BOOST_FIXTURE_TEST_SUITE(protected_files, Fixture)

BOOST_AUTO_TEST_CASE(the_documentation_has_the_list) {
    const auto text =
        test::read_file(fs::path(std::getenv("IPYBOX_TEST_SUPPORT")) / "../../docs/sandboxing.md");
    std::size_t rows = 0;
    const std::regex row(
        "\\| `([^`|]+)` \\| (protected, also absent|protected|told) \\| ([^|]+) \\|");
    auto at = std::sregex_iterator(text.begin(), text.end(), row);
    const auto* expected = std::begin(host_run_files);
    for (; at != std::sregex_iterator() && expected != std::end(host_run_files);
         ++at, ++expected, ++rows) {
        const auto& found_row = *at;
        BOOST_TEST(found_row[1].str() == expected->path);
        const bool held = expected->absent != Absent::free;
        BOOST_TEST(found_row[2].str() == (expected->when == HostRun::on_persons_act ? "told"
                                          : held ? "protected, also absent"
                                                 : "protected"));
        BOOST_TEST(found_row[3].str() == expected->why);
    }
    BOOST_TEST(rows == std::size(host_run_files));
    BOOST_TEST((at == std::sregex_iterator()));
    for (const auto number : {max_entries, max_listing, max_protected}) {
        auto words = std::to_string(number);
        if (words.size() > 3) words.insert(words.size() - 3, ",");
        BOOST_TEST(text.find(words) != std::string::npos, words);
    }
}

BOOST_AUTO_TEST_CASE(the_list_is_well_formed) {
    std::set<std::string_view> seen;
    for (const auto& one : host_run_files) {
        BOOST_TEST(seen.insert(one.path).second, one.path);
        BOOST_TEST(!one.why.empty());
        BOOST_TEST(std::count(one.path.begin(), one.path.end(), '*') <= 1);
        BOOST_TEST((one.path.find('*') == one.path.npos || one.path.find('/') == one.path.npos),
                   one.path);
        // What is held costs every start a mount.
        BOOST_TEST((one.absent == Absent::free || one.when == HostRun::unasked), one.path);
    }
    BOOST_TEST(fits("*.code-workspace", "a.code-workspace"));
    BOOST_TEST(fits("*.code-workspace", ".code-workspace"));
    BOOST_TEST(fits("mise.*.toml", "mise.x.toml"));
    BOOST_TEST(!fits("mise.*.toml", "mise.toml"));
}

BOOST_AUTO_TEST_CASE(what_runs_unasked_is_held_at_the_top_also_while_absent) {
    search();
    for (const char* name : {".husky", ".envrc", ".cursor", ".devcontainer", ".codex", ".gemini",
                             ".zed", ".kiro", ".roo", ".zshenv", ".bash_login", "lefthook.yml",
                             "mise.toml", ".vscode", ".claude", ".git/hooks", "HEAD"})
        BOOST_TEST(has(name), name);
    for (const char* name :
         {"CLAUDE.md", "package.json", ".github/workflows", "a.code-workspace", ".exrc"})
        BOOST_TEST(!has(name), name);
    BOOST_TEST(found.left_out.empty());
}

BOOST_AUTO_TEST_CASE(what_is_there_is_protected_below_as_well_with_the_rest_of_its_program) {
    file("project/lefthook.yml");
    file("project/deep/.envrc");
    file("team.code-workspace");
    file("project/package.json");
    file("project/vendor/x/.envrc");
    file("a/b/c/.exrc");
    file("a/b/c/d/.exrc");
    search();
    for (const char* name :
         {"project/lefthook.yml", "project/lefthook-local.yml", "project/deep/.envrc",
          "team.code-workspace", "a/b/c/.exrc", "a/b/c/.nvim.lua"})
        BOOST_TEST(has(name), name);
    for (const char* name :
         {"project/package.json", "project/mise.toml", "project/vendor/x/.envrc", "a/b/c/d/.exrc"})
        BOOST_TEST(!has(name), name);
    BOOST_TEST(found.deeper.starts_with("a/b/c/d: deeper than 3 levels"), found.deeper);
}

BOOST_AUTO_TEST_CASE(strict_holds_what_runs_on_a_person_s_act) {
    file("project/Makefile");
    rules.strict = true;
    search();
    for (const char* name : {"CLAUDE.md", "AGENTS.md", ".github/workflows", ".npmrc",
                             "package.json", "project/Makefile"})
        BOOST_TEST(has(name), name);
    BOOST_TEST(!has("project/package.json"));
}

BOOST_AUTO_TEST_CASE(only_what_is_named_is_opened) {
    file("project/.vscode/tasks.json");
    file("project/.envrc");
    file("other/.envrc");
    rules.opened = {top / ".envrc", top / "project"};
    search();
    for (const char* name : {".envrc", "project/.envrc", "project/.vscode"})
        BOOST_TEST(!has(name), name);
    for (const char* name : {"other/.envrc", ".vscode"}) BOOST_TEST(has(name), name);
    BOOST_TEST(found.opened.size() == 3u);
}

BOOST_AUTO_TEST_CASE(git_s_configuration_leads_to_more) {
    repository(".git",
               "[Include]\n\tpath = ../shared.conf ; comment\n"
               "[includeIf \"gitdir:~/x\"]\n\tPath = \"../ot\\\"her\\\\.conf\"\n"
               "[core]\n\thooksPath = \\\n./tools/hooks # here\n\tfsmonitor = \"tools/watch.sh "
               "--fast\"\n\tpager = less\n"
               "[filter \"x\"]\n\tclean = python3 tools/clean.py %f\n\tsmudge = cat README.md\n"
               "[alias]\n\tdo = !sh -c './tools/do it'\n");
    file("shared.conf", "[include]\npath=more/last.conf\n[core]\nsshCommand=tools/ssh\n");
    file("more/last.conf", "[include]\npath=../shared.conf\n[diff \"d\"]\ntextconv=tools/text.rb");
    for (const char* name : {"tools/watch.sh", "tools/clean.py", "tools/text.rb", "README.md"})
        file(name);
    for (const char* name : {"tools/do", "tools/ssh", "tools/less"}) file(name, "x", true);
    file("tools/hooks/pre-commit",
         "#!/bin/sh\n. \"$(dirname \"$0\")/../common.sh\"\nnode scripts/check.mjs || exit 1\ngit "
         "diff README.md | ./run-all\n");
    file("tools/common.sh", "exec python \"$ROOT/scripts/lint.py\"");
    for (const char* name : {"scripts/check.mjs", "scripts/lint.py", "scripts/other.py"})
        file(name);
    file("run-all", "#!/bin/sh", true);
    search();
    for (const char* name :
         {"shared.conf", "ot\"her\\.conf", "more/last.conf", "tools/hooks", "tools/watch.sh",
          "tools/clean.py", "tools/do", "tools/ssh", "tools/text.rb", "tools/common.sh",
          "scripts/check.mjs", "scripts/lint.py", "run-all"})
        BOOST_TEST(has(name), name);
    for (const char* name : {"README.md", "tools/less", "scripts/other.py", "HEAD"})
        BOOST_TEST(!has(name), name);
    BOOST_TEST(left_out() == "");
    rules.git_config = false;
    search();
    BOOST_TEST(!has("shared.conf"));
    BOOST_TEST(!has(".git/config"));
    BOOST_TEST(has("tools/hooks"));
    BOOST_TEST(has(".git/hooks"));
}

BOOST_AUTO_TEST_CASE(a_hook_that_is_a_link_leads_to_its_script) {
    repository(".git");
    file("scripts/commit", "#!/bin/sh\npython scripts/format.py\n");
    file("scripts/format.py");
    file("node_modules/tool/cli.js");
    fs::create_symlink("../../scripts/commit", top / ".git/hooks/pre-commit");
    fs::create_symlink("../../node_modules/tool/cli.js", top / ".git/hooks/pre-push");
    search();
    BOOST_TEST(has("scripts/commit"));
    BOOST_TEST(has("scripts/format.py"));
    BOOST_TEST(!has("node_modules/tool/cli.js"));
    BOOST_TEST(left_out().find("node_modules/tool/cli.js: git's hooks or settings run it") !=
                   std::string::npos,
               left_out());
}

BOOST_AUTO_TEST_CASE(every_shape_of_a_repository_is_one) {
    repository("bare.git");
    repository("stores/part.git");
    repository(".git");
    repository(".git/modules/lib/part");
    file("part/.git", "gitdir: ../stores/part.git\n");
    file("tree/.git", "gitdir: " + (top / "stores/part.git/worktrees/tree").string() + "\n");
    repository("stores/part.git/worktrees/tree");
    file("stores/part.git/worktrees/tree/commondir", "../..\n");
    search();
    for (const std::string git : {"bare.git", "stores/part.git", ".git", ".git/modules/lib/part",
                                  "stores/part.git/worktrees/tree"})
        for (const char* name : {"hooks", "config", "commondir", "config.worktree"})
            BOOST_TEST(has(git + "/" + name), git << "/" << name);
    BOOST_TEST(has("part/.git/hooks"));
    BOOST_TEST(!has("HEAD"));
}

// The protected files of one stay where they are, and code moves the rest of it out of the way.
BOOST_AUTO_TEST_CASE(a_repository_that_code_has_taken_apart_is_still_one) {
    const auto config = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n";
    repository(".git");
    repository(".git/modules/third_party/lib", config);
    repository(".git/modules/third_party/lib/modules/inner", config);
    file(".git/worktrees/tree/commondir", "../..\n");
    repository("bare", config);
    for (const char* name :
         {".git/modules/third_party/lib/HEAD", ".git/modules/third_party/lib/modules/inner/HEAD",
          "bare/HEAD", "bare/objects", "bare/refs"})
        fs::remove(top / name);
    // One around the others would end the search.
    for (const char* name : {".git/modules/third_party", ".git/modules/third_party/lib/modules"})
        file(std::string(name) + "/HEAD");
    file("other/config", "[server]\nport = 1\n");
    file("other/refs/x");
    search();
    for (const char* name :
         {".git/modules/third_party/lib/config", ".git/modules/third_party/lib/hooks",
          ".git/modules/third_party/lib/modules/inner/config", ".git/worktrees/tree/commondir",
          "bare/config", "bare/hooks"})
        BOOST_TEST(has(name), name);
    BOOST_TEST(!has("other/config"));
}

// As far as this process is root, it looks as somebody whom the modes of files hold up.
BOOST_AUTO_TEST_CASE(directories_that_keep_the_search_out_are_protected_as_a_whole) {
    repository(".git");
    file(".git/hooks/pre-commit", "sh tools/lint.sh\n");
    file("tools/lint.sh");
    repository(".git/modules/lib");
    file("closed/sub/.envrc");
    const std::vector<fs::path> closed = {top / "tools", top / ".git/modules", top / "closed"};
    test::OrdinaryUser user(top);
    for (const auto& path : closed) fs::permissions(path, fs::perms(0444));
    search();
    for (const auto& path : closed) fs::permissions(path, fs::perms(0755));
    for (const char* name : {"tools", ".git/modules", "closed"}) BOOST_TEST(has(name), name);
}

BOOST_AUTO_TEST_CASE(a_part_of_a_repository_is_protected_as_git_sees_it) {
    repository(".git", "[core]\n\thooksPath = sub/githooks\n");
    file(".git/hooks/post-merge", "sub/tools/merged.sh; tools/outside.sh\n");
    file("sub/githooks/pre-commit", "sh sub/tools/check.sh\n");
    file("tools/outside.sh");
    for (const char* name : {"check.sh", "merged.sh", "other.sh"})
        file(std::string("sub/tools/") + name);
    search_in("sub");
    for (const char* name : {"sub/githooks", "sub/tools/check.sh", "sub/tools/merged.sh"})
        BOOST_TEST(has(name), name);
    for (const auto& path : found.paths) BOOST_TEST(within(path, top / "sub"), path);
    BOOST_TEST(!has("sub/tools/other.sh"));

    // A working tree whose repository lies elsewhere.
    repository("main/.git", "[core]\n\tfsmonitor = tools/watch.sh\n");
    file("main/.git/worktrees/tree/commondir", "../..\n");
    file("main/.git/hooks/pre-push", "exec tools/push.sh\n");
    file("tree/.git", "gitdir: " + (top / "main/.git/worktrees/tree").string() + "\n");
    for (const char* name : {"watch.sh", "push.sh", "planted.sh"})
        file(std::string("tree/tools/") + name);
    // Where code can make one, it leads nowhere outside.
    repository("elsewhere", "[core]\n\tfsmonitor = tools/planted.sh\n");
    file("tree/nested/.git", "gitdir: " + (top / "elsewhere").string() + "\n");
    file("tree/nested/tools/planted.sh");
    search_in("tree");
    for (const char* name : {"tree/tools/watch.sh", "tree/tools/push.sh"})
        BOOST_TEST(has(name), name);
    BOOST_TEST(!has("tree/nested/tools/planted.sh"));

    repository("all/.git", "[core]\n\thooksPath = .\n");
    fs::create_directories(top / "all/sub");
    search_in("all/sub");
    BOOST_TEST(left_out().find("the workspace: git finds its hooks there") != std::string::npos,
               left_out());
}

BOOST_AUTO_TEST_CASE(hostile_configurations_are_skipped_and_stay_protected) {
    repository("pipe/.git");
    fs::remove(top / "pipe/.git/config");
    BOOST_REQUIRE(::mkfifo((top / "pipe/.git/config").c_str(), 0666) == 0);
    repository("zero/.git");
    fs::remove(top / "zero/.git/config");
    fs::create_symlink("/dev/zero", top / "zero/.git/config");
    repository("endless/.git");
    BOOST_REQUIRE(::truncate((top / "endless/.git/config").c_str(), off_t{1} << 40) == 0);
    repository("loop/.git", "[include]\npath=config\npath=a\n");
    file("loop/.git/a", "[include]\npath=config\n");
    fs::create_directory_symlink("loop", top / "linked");
    file("link/to", "");
    fs::create_symlink("to", top / "link/.envrc");
    fs::create_symlink("to", top / ".exrc");
    search();
    for (const char* name :
         {"pipe/.git/config", "endless/.git/config", "loop/.git/config", "loop/.git/a", ".envrc"})
        BOOST_TEST(has(name), name);
    for (const char* name : {"zero/.git/config", "linked/.git/config", "link/.envrc", ".exrc"})
        BOOST_TEST(!has(name), name);
    for (const char* words : {"pipe/.git/config: a configuration of git was not read for further "
                              "files: it is no regular file",
                              "endless/.git/config: a configuration of git was not read for "
                              "further files: it has more than 1 MiB",
                              "zero/.git/config: a configuration of git was not read for further "
                              "files: it is reached over a symbolic link",
                              ": is a symbolic link, or reached over one, and cannot be protected"})
        BOOST_TEST(left_out().find(words) != std::string::npos,
                   words << " is not in " << left_out());
}

BOOST_AUTO_TEST_CASE(names_beyond_every_limit_end_no_search) {
    // Deeper than a path can be long.
    UniqueFd at = open_directory(top);
    const std::string name(200, 'x');
    for (int level = 0; level < 40; ++level) {
        BOOST_REQUIRE(::mkdirat(at.get(), name.c_str(), 0755) == 0);
        at = open_beneath(at.get(), name, O_RDONLY | O_DIRECTORY);
        BOOST_REQUIRE(static_cast<bool>(at));
        const UniqueFd made(::openat(at.get(), ".envrc", O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
    }
    rules.depth = 40;
    search();
    BOOST_TEST(has(fs::path(name) / ".envrc"));
    BOOST_TEST(left_out().find("its path is too long") != std::string::npos, left_out());
    for (const auto& path : found.paths) BOOST_TEST(path.native().size() < 3'600u);
    // std::filesystem cannot remove it.
    BOOST_TEST(std::system(("rm -rf '" + (top / name).string() + "'").c_str()) == 0);
}

BOOST_AUTO_TEST_CASE(mounts_and_entries_are_bounded_and_what_is_left_out_is_told) {
    for (int i = 0; i < 500; ++i) file("many/d" + std::to_string(i) + "/.envrc", "");
    search();
    BOOST_TEST(found.paths.size() <= max_protected);
    BOOST_TEST(left_out().find("more than 400 mounts") != std::string::npos, left_out());
    fs::remove_all(top / "many");
    file("a/.envrc");
    for (std::size_t i = 0; i < max_listing + 5; ++i)
        test::write_file(top / ("f" + std::to_string(i)), "");
    file(".exrc");
    search();
    BOOST_TEST(has(".exrc"));
    BOOST_TEST(left_out().find("the workspace: has more than 10000 entries") != std::string::npos,
               left_out());
}

BOOST_AUTO_TEST_CASE(decoys_take_no_mount_from_what_lies_above_them) {
    repository(".git");
    repository("mine/.git");
    repository("also/mine.git");
    repository("also/wants/.git");
    file("also/wants/team.code-workspace");
    const auto all_there = [&] {
        search();
        for (const char* git : {".git", "mine/.git"})
            for (const char* name : {"hooks", "config", "commondir", "config.worktree"})
                BOOST_TEST(has(fs::path(git) / name), git << "/" << name);
        BOOST_TEST(has(".envrc"));
        BOOST_TEST(found.paths.size() <= max_protected);
        BOOST_TEST(
            left_out().find(" more: not protected, because that would take more than 400 mounts") !=
                std::string::npos,
            left_out());
    };
    // In git's own directory, which code can write but for its settings.
    for (int i = 0; i < 300; ++i) file(".git/modules/d" + std::to_string(i) + "/HEAD");
    all_there();
    fs::remove_all(top / ".git/modules");
    for (int i = 0; i < 300; ++i) file(".git/worktrees/d" + std::to_string(i) + "/HEAD");
    all_there();
    fs::remove_all(top / ".git/worktrees");
    for (int i = 0; i < 300; ++i) repository("decoys/d" + std::to_string(i) + "/.git");
    all_there();
    fs::remove_all(top / "decoys");
    // Names of a pattern are as many as code wants.
    for (int i = 0; i < 500; ++i)
        file("p" + std::to_string(i % 5) + "/" + std::to_string(i) + ".code-workspace");
    all_there();
    const auto patterned =
        std::count_if(found.paths.begin(), found.paths.end(),
                      [](const auto& path) { return path.extension() == ".code-workspace"; });
    BOOST_TEST(patterned > 200);
}

BOOST_AUTO_TEST_CASE(a_watch_tells_what_came_and_changed) {
    file("package.json", "1");
    file("docs/AGENTS.md", "1");
    file(".github/workflows/ci.yml", "1");
    file("many/x", "");
    FileWatch watch(top, 3, {top / ".envrc", top / ".vscode"}, true);
    BOOST_TEST(watch.poll().empty());
    file("ordinary.txt");
    file(".envrc");  // write-protected: not by the code
    file(".vscode/x");
    BOOST_TEST(watch.poll().empty());
    file("package.json", "2");
    file("docs/AGENTS.md", "2");
    file(".github/workflows/ci.yml", "2");
    file("Makefile");
    fs::create_symlink("ordinary.txt", top / ".exrc");
    BOOST_TEST(told(watch.poll()) == (Told{"~package.json", "~docs/AGENTS.md", "~.github/workflows",
                                           "+Makefile", "+.exrc"}),
               boost::test_tools::per_element());
    BOOST_TEST(watch.poll().empty());
    BOOST_TEST(watch.scan().empty());
    // Not watched, but found by a look at everything.
    file("many/.envrc");
    repository("many/new/.git");
    repository("many/bare");
    BOOST_TEST(watch.poll().empty());
    BOOST_TEST(
        told(watch.scan()) == (Told{"+many/.envrc", "+many/new/.git/hooks", "+many/bare/config"}),
        boost::test_tools::per_element());
    BOOST_TEST(watch.scan().empty());
}

BOOST_AUTO_TEST_CASE(a_watch_begins_with_what_the_search_found) {
    for (const char* name : {"package.json", "a/AGENTS.md", "a/b/Makefile"}) file(name, "1");
    repository("a/bare");
    search();
    file("a/new/Makefile");  // nobody saw it before the watch began
    FileWatch watch(top, rules.depth, found.paths, true, &found.directories);
    BOOST_TEST(watch.poll().empty());
    for (const char* name : {"package.json", "a/AGENTS.md", "a/b/Makefile"}) file(name, "2");
    file("a/CLAUDE.md");
    BOOST_TEST(told(watch.poll()) ==
                   (Told{"~package.json", "~a/AGENTS.md", "~a/b/Makefile", "+a/CLAUDE.md"}),
               boost::test_tools::per_element());
    BOOST_TEST(told(watch.scan()) == Told{"+a/new/Makefile"}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_changed_time_hides_no_change) {
    file("Makefile", "1");
    struct stat before{};
    BOOST_REQUIRE(::stat((top / "Makefile").c_str(), &before) == 0);
    FileWatch watch(top, 3, {}, true);
    {
        const UniqueFd open(::open((top / "Makefile").c_str(), O_WRONLY | O_CLOEXEC));
        BOOST_REQUIRE(::write(open.get(), "2", 1) == 1);
        const timespec times[2] = {before.st_atim, before.st_mtim};
        BOOST_REQUIRE(::futimens(open.get(), times) == 0);
    }
    BOOST_TEST(told(watch.poll()) == Told{"~Makefile"}, boost::test_tools::per_element());
    // Nor does one that looks like what holds an absent name's place.
    file(".windsurf/hooks.json");
    const timespec stamp[2] = {{placeholder_time, 0}, {placeholder_time, 0}};
    BOOST_REQUIRE(::utimensat(AT_FDCWD, (top / ".windsurf").c_str(), stamp, 0) == 0);
    BOOST_TEST(told(watch.poll()) == Told{"+.windsurf"}, boost::test_tools::per_element());
    // A link holds no place.
    fs::create_symlink("x", top / ".exrc");
    BOOST_REQUIRE(::utimensat(AT_FDCWD, (top / ".exrc").c_str(), stamp, AT_SYMLINK_NOFOLLOW) == 0);
    BOOST_TEST(told(watch.poll()) == Told{"+.exrc"}, boost::test_tools::per_element());
    fs::create_directory(top / ".zed");
    BOOST_REQUIRE(::utimensat(AT_FDCWD, (top / ".zed").c_str(), stamp, 0) == 0);
    BOOST_TEST(watch.poll().empty());
}

BOOST_AUTO_TEST_CASE(directories_that_come_later_are_watched) {
    FileWatch watch(top, 3, {}, true);
    fs::create_directory(top / ".github");
    BOOST_TEST(watch.poll().empty());
    file(".github/workflows/ci.yml");
    BOOST_TEST(told(watch.poll()) == Told{"+.github/workflows"}, boost::test_tools::per_element());
    file(".github/workflows/more.yml");
    BOOST_TEST(told(watch.poll()) == Told{"~.github/workflows"}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_flood_of_changes_hides_none) {
    FileWatch watch(top, 3, {}, true);
    for (int i = 0; i < 20'000; ++i) {
        const auto name = top / ("f" + std::to_string(i % 100));
        test::write_file(name, "x");
        fs::remove(name);
    }
    file("Makefile");
    BOOST_TEST(told(watch.poll()) == Told{"+Makefile"}, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace protected_files_tests
