#pragma once
// Files of a project that programs of the host execute or obey. The one list: what protects them,
// what tells that they changed and the table in docs/sandboxing.md all follow it.
#include <string_view>

namespace ipybox::detail {

enum class HostRun {
    unasked,         // by programs that a person uses for something else: write-protected
    on_persons_act,  // when a person says so, or by an agent that obeys it: told when it changes
};

// Whether a name is protected at the top of a workspace even while nothing is there, and as what it
// is held. Each costs a mount, so that this is for what does harm where nobody has set up the
// program before.
enum class Absent { held, held_directory, free };

struct HostRunFile {
    std::string_view path;  // relative to a project's directory; its first part may hold one `*`
    // Files of one program: where one of them is, the others are protected as well, also absent.
    std::string_view program;
    HostRun when;
    Absent absent;
    std::string_view why;  // a clause for people: who runs it, and when
};

inline constexpr HostRunFile host_run_files[] = {
    {".git/hooks", "git", HostRun::unasked, Absent::held_directory,
     "git runs them at commits, checkouts, merges and pushes"},
    {".git/config", "git", HostRun::unasked, Absent::held,
     "names programs that git runs, some at `git status`"},
    {".git/config.worktree", "git", HostRun::unasked, Absent::held,
     "the same, for one working tree"},
    {".git/commondir", "git", HostRun::unasked, Absent::held,
     "leads git to another configuration and other hooks"},
    {".gitconfig", "", HostRun::unasked, Absent::held,
     "git's configuration of whoever has the workspace as home"},
    {".gitmodules", "", HostRun::unasked, Absent::held,
     "leads git into repositories inside this one"},
    {".husky", "", HostRun::unasked, Absent::held_directory,
     "husky's git hooks run what lies there"},
    {"lefthook.yml", "lefthook", HostRun::unasked, Absent::held,
     "lefthook's git hooks run its commands"},
    {"lefthook.yaml", "lefthook", HostRun::unasked, Absent::free, "the same"},
    {"lefthook.toml", "lefthook", HostRun::unasked, Absent::free, "the same"},
    {"lefthook.json", "lefthook", HostRun::unasked, Absent::free, "the same"},
    {".lefthook.yml", "lefthook", HostRun::unasked, Absent::free, "the same"},
    {".lefthook.yaml", "lefthook", HostRun::unasked, Absent::free, "the same"},
    {".lefthook.toml", "lefthook", HostRun::unasked, Absent::free, "the same"},
    {".lefthook.json", "lefthook", HostRun::unasked, Absent::free, "the same"},
    {"lefthook-local.yml", "lefthook", HostRun::unasked, Absent::free,
     "the same, added to the others"},
    {"lefthook-local.yaml", "lefthook", HostRun::unasked, Absent::free,
     "the same, added to the others"},
    {"lefthook-local.toml", "lefthook", HostRun::unasked, Absent::free,
     "the same, added to the others"},
    {"lefthook-local.json", "lefthook", HostRun::unasked, Absent::free,
     "the same, added to the others"},
    {".lefthook-local.yml", "lefthook", HostRun::unasked, Absent::free,
     "the same, added to the others"},
    {".lefthook-local.yaml", "lefthook", HostRun::unasked, Absent::free,
     "the same, added to the others"},
    {".lefthook-local.toml", "lefthook", HostRun::unasked, Absent::free,
     "the same, added to the others"},
    {".lefthook-local.json", "lefthook", HostRun::unasked, Absent::free,
     "the same, added to the others"},
    {".lefthook", "lefthook", HostRun::unasked, Absent::free,
     "scripts that lefthook's git hooks run"},
    {".lefthook-local", "lefthook", HostRun::unasked, Absent::free,
     "scripts that lefthook's git hooks run"},
    {".config/lefthook.yml", "", HostRun::unasked, Absent::free, "the same"},
    {".config/lefthook.yaml", "", HostRun::unasked, Absent::free, "the same"},
    {".config/lefthook.toml", "", HostRun::unasked, Absent::free, "the same"},
    {".config/lefthook.json", "", HostRun::unasked, Absent::free, "the same"},

    {".envrc", "direnv", HostRun::unasked, Absent::held,
     "direnv runs it when a shell enters the directory"},
    {".direnv", "", HostRun::unasked, Absent::free, "direnv keeps there what `.envrc` reads"},
    {"mise.toml", "mise", HostRun::unasked, Absent::held,
     "mise runs its hooks when a shell enters the directory"},
    {".mise.toml", "mise", HostRun::unasked, Absent::free, "the same"},
    {"mise.local.toml", "mise", HostRun::unasked, Absent::free, "the same"},
    {".mise.local.toml", "mise", HostRun::unasked, Absent::free, "the same"},
    {"mise.*.toml", "", HostRun::unasked, Absent::free, "the same, in one environment"},
    {".mise.*.toml", "", HostRun::unasked, Absent::free, "the same, in one environment"},
    {"mise/config.toml", "", HostRun::unasked, Absent::free, "the same"},
    {".mise", "", HostRun::unasked, Absent::free, "the same; and tasks of mise"},
    {".config/mise", "", HostRun::unasked, Absent::free, "the same"},
    {".config/mise.toml", "", HostRun::unasked, Absent::free, "the same"},
    {".tool-versions", "", HostRun::unasked, Absent::free,
     "leads asdf and mise to the programs that they run instead of the system's"},
    {".autoenv.zsh", "", HostRun::unasked, Absent::free,
     "autoenv runs it when a shell enters the directory"},

    {".bashrc", "", HostRun::unasked, Absent::held,
     "start file of a shell, where the workspace is a home directory"},
    {".bash_profile", "", HostRun::unasked, Absent::held, "the same"},
    {".bash_login", "", HostRun::unasked, Absent::held, "the same"},
    {".bash_logout", "", HostRun::unasked, Absent::free, "the same"},
    {".bash_aliases", "", HostRun::unasked, Absent::free, "the same"},
    {".profile", "", HostRun::unasked, Absent::held, "the same"},
    {".zshenv", "", HostRun::unasked, Absent::held, "the same"},
    {".zshrc", "", HostRun::unasked, Absent::held, "the same"},
    {".zprofile", "", HostRun::unasked, Absent::held, "the same"},
    {".zlogin", "", HostRun::unasked, Absent::free, "the same"},
    {".zlogout", "", HostRun::unasked, Absent::free, "the same"},
    {".cshrc", "", HostRun::unasked, Absent::free, "the same"},
    {".tcshrc", "", HostRun::unasked, Absent::free, "the same"},
    {".ripgreprc", "", HostRun::unasked, Absent::held,
     "ripgrep runs the program that it names before it reads a file"},

    {".mcp.json", "", HostRun::unasked, Absent::held, "agents start the MCP servers that it names"},
    {"mcp.json", "", HostRun::unasked, Absent::held, "the same, and `--config mcp.json`"},
    {"policy.json", "", HostRun::unasked, Absent::held, "`--policy policy.json` decides on calls"},
    {".claude", "", HostRun::unasked, Absent::held_directory,
     "hooks, commands and agents of Claude Code"},
    {".codex", "", HostRun::unasked, Absent::held_directory, "MCP servers and settings of Codex"},
    {".gemini", "", HostRun::unasked, Absent::held_directory,
     "MCP servers, hooks and settings of Gemini CLI"},
    {".cursor", "", HostRun::unasked, Absent::held_directory, "MCP servers and hooks of Cursor"},
    {".kiro", "", HostRun::unasked, Absent::held_directory, "MCP servers and hooks of Kiro"},
    {".roo", "", HostRun::unasked, Absent::held_directory, "MCP servers of Roo Code"},
    {".windsurf", "", HostRun::unasked, Absent::free, "workflows of Windsurf"},
    {".continue", "", HostRun::unasked, Absent::free, "MCP servers of Continue"},
    {".qwen", "", HostRun::unasked, Absent::free, "MCP servers and settings of Qwen Code"},
    {".amazonq", "", HostRun::unasked, Absent::free, "MCP servers and agents of Amazon Q"},
    {".opencode", "opencode", HostRun::unasked, Absent::free, "plugins and tools of OpenCode"},
    {"opencode.json", "opencode", HostRun::unasked, Absent::free,
     "MCP servers and formatters of OpenCode"},
    {"opencode.jsonc", "opencode", HostRun::unasked, Absent::free, "the same"},
    {".crush.json", "crush", HostRun::unasked, Absent::free, "MCP and language servers of Crush"},
    {"crush.json", "crush", HostRun::unasked, Absent::free, "the same"},
    {".trae", "", HostRun::unasked, Absent::free, "MCP servers of Trae"},
    {".junie", "", HostRun::unasked, Absent::free, "MCP servers of Junie"},
    {".aider.conf.yml", "", HostRun::unasked, Absent::free,
     "commands that aider runs after each edit"},

    {".vscode", "", HostRun::unasked, Absent::held_directory,
     "tasks that Visual Studio Code and editors like it run when they open the folder, and "
     "programs that its settings name"},
    {"*.code-workspace", "", HostRun::unasked, Absent::free, "the same"},
    {".devcontainer", "devcontainer", HostRun::unasked, Absent::held_directory,
     "commands that editors run on the host to make a container"},
    {".devcontainer.json", "devcontainer", HostRun::unasked, Absent::free, "the same"},
    {".idea", "", HostRun::unasked, Absent::held_directory,
     "run configurations and tools of JetBrains' editors"},
    {".fleet", "", HostRun::unasked, Absent::free, "run configurations of Fleet"},
    {".zed", "", HostRun::unasked, Absent::held_directory, "language servers and tasks of Zed"},
    {".vs", "", HostRun::unasked, Absent::free, "tasks of Visual Studio"},
    {".exrc", "vim", HostRun::unasked, Absent::free,
     "Vim and Neovim run it when they start there with `exrc`"},
    {".vimrc", "vim", HostRun::unasked, Absent::free, "the same"},
    {".nvimrc", "vim", HostRun::unasked, Absent::free, "the same"},
    {".nvim.lua", "vim", HostRun::unasked, Absent::free, "the same"},
    {".dir-locals.el", "emacs", HostRun::unasked, Absent::free,
     "Emacs sets and evaluates it with each file that it opens"},
    {".dir-locals-2.el", "emacs", HostRun::unasked, Absent::free, "the same"},
    {".gdbinit", "", HostRun::unasked, Absent::free,
     "gdb runs it when it starts there, if told that the place is safe"},
    {".lldbinit", "", HostRun::unasked, Absent::free,
     "lldb runs it when it starts there, if told so"},

    {"CLAUDE.md", "", HostRun::on_persons_act, Absent::free, "instructions that agents follow"},
    {"CLAUDE.local.md", "", HostRun::on_persons_act, Absent::free, "the same"},
    {"AGENTS.md", "", HostRun::on_persons_act, Absent::free, "the same"},
    {"AGENTS.override.md", "", HostRun::on_persons_act, Absent::free, "the same"},
    {"GEMINI.md", "", HostRun::on_persons_act, Absent::free, "the same"},
    {".cursorrules", "", HostRun::on_persons_act, Absent::free, "the same"},
    {".windsurfrules", "", HostRun::on_persons_act, Absent::free, "the same"},
    {".clinerules", "", HostRun::on_persons_act, Absent::free, "the same"},
    {".rules", "", HostRun::on_persons_act, Absent::free, "the same"},
    {".github/copilot-instructions.md", "", HostRun::on_persons_act, Absent::free, "the same"},
    {".github/instructions", "", HostRun::on_persons_act, Absent::free, "the same"},
    {".agents", "", HostRun::on_persons_act, Absent::free, "skills that agents load"},
    {".github/workflows", "", HostRun::on_persons_act, Absent::free,
     "GitHub runs them once they are pushed"},
    {".github/actions", "", HostRun::on_persons_act, Absent::free, "the same"},
    {".gitlab-ci.yml", "", HostRun::on_persons_act, Absent::free,
     "GitLab runs it once it is pushed"},
    {".circleci", "", HostRun::on_persons_act, Absent::free, "CircleCI runs it once it is pushed"},
    {"azure-pipelines.yml", "", HostRun::on_persons_act, Absent::free,
     "Azure runs it once it is pushed"},
    {"Jenkinsfile", "", HostRun::on_persons_act, Absent::free, "Jenkins runs it once it is pushed"},
    {".gitattributes", "", HostRun::on_persons_act, Absent::free,
     "chooses which of the configured filters git runs"},
    {".pre-commit-config.yaml", "", HostRun::on_persons_act, Absent::free,
     "pre-commit installs and runs what it names"},
    {".overcommit.yml", "", HostRun::on_persons_act, Absent::free,
     "overcommit runs what it names, once it is signed"},
    {".lintstagedrc*", "", HostRun::on_persons_act, Absent::free, "lint-staged runs its commands"},
    {"package.json", "", HostRun::on_persons_act, Absent::free,
     "npm and tools like it run its scripts"},
    {".npmrc", "", HostRun::on_persons_act, Absent::free,
     "leads npm to other registries and programs"},
    {".yarnrc", "", HostRun::on_persons_act, Absent::free,
     "names the program that yarn runs as itself"},
    {".yarnrc.yml", "", HostRun::on_persons_act, Absent::free, "the same; and plugins"},
    {".pnpmfile.cjs", "", HostRun::on_persons_act, Absent::free,
     "pnpm runs it at each installation"},
    {"pnpm-workspace.yaml", "", HostRun::on_persons_act, Absent::free,
     "pnpm's settings, scripts that it allows among them"},
    {"bunfig.toml", "", HostRun::on_persons_act, Absent::free, "names what bun loads first"},
    {"deno.json", "", HostRun::on_persons_act, Absent::free, "tasks of deno"},
    {"eslint.config.*", "", HostRun::on_persons_act, Absent::free,
     "ESLint runs it, also from editors"},
    {".eslintrc*", "", HostRun::on_persons_act, Absent::free, "the same"},
    {".prettierrc*", "", HostRun::on_persons_act, Absent::free,
     "Prettier loads what it names, also from editors"},
    {"Makefile", "", HostRun::on_persons_act, Absent::free, "make runs it"},
    {"makefile", "", HostRun::on_persons_act, Absent::free, "the same"},
    {"GNUmakefile", "", HostRun::on_persons_act, Absent::free, "the same"},
    {"CMakeLists.txt", "", HostRun::on_persons_act, Absent::free,
     "CMake runs it, also from editors"},
    {"CMakePresets.json", "", HostRun::on_persons_act, Absent::free, "the same"},
    {"meson.build", "", HostRun::on_persons_act, Absent::free, "Meson runs it"},
    {"justfile", "", HostRun::on_persons_act, Absent::free, "just runs it"},
    {"Justfile", "", HostRun::on_persons_act, Absent::free, "the same"},
    {"Taskfile.y*", "", HostRun::on_persons_act, Absent::free, "task runs it"},
    {"Rakefile", "", HostRun::on_persons_act, Absent::free, "rake runs it"},
    {"Gemfile", "", HostRun::on_persons_act, Absent::free, "bundler runs it"},
    {"build.gradle*", "", HostRun::on_persons_act, Absent::free,
     "Gradle runs it, also from editors"},
    {"settings.gradle*", "", HostRun::on_persons_act, Absent::free, "the same"},
    {"gradlew", "", HostRun::on_persons_act, Absent::free, "runs Gradle"},
    {"mvnw", "", HostRun::on_persons_act, Absent::free, "runs Maven"},
    {".mvn", "", HostRun::on_persons_act, Absent::free, "extensions that Maven loads"},
    {"Cargo.toml", "", HostRun::on_persons_act, Absent::free,
     "cargo runs the build scripts that it names, also from editors"},
    {"build.rs", "", HostRun::on_persons_act, Absent::free, "cargo runs it, also from editors"},
    {".cargo", "", HostRun::on_persons_act, Absent::free, "names programs that cargo runs"},
    {"rust-toolchain*", "", HostRun::on_persons_act, Absent::free,
     "leads rustup to the programs that it runs"},
    {"setup.py", "", HostRun::on_persons_act, Absent::free, "pip runs it"},
    {"setup.cfg", "", HostRun::on_persons_act, Absent::free, "settings of Python's tools"},
    {"pyproject.toml", "", HostRun::on_persons_act, Absent::free,
     "names what builds and tests the project, plugins among it"},
    {"conftest.py", "", HostRun::on_persons_act, Absent::free, "pytest runs it, also from editors"},
    {"pytest.ini", "", HostRun::on_persons_act, Absent::free, "names plugins that pytest loads"},
    {"tox.ini", "", HostRun::on_persons_act, Absent::free, "tox and pytest run what it names"},
    {"noxfile.py", "", HostRun::on_persons_act, Absent::free, "nox runs it"},
    {"manage.py", "", HostRun::on_persons_act, Absent::free, "Django's commands run it"},
    {"Dockerfile", "", HostRun::on_persons_act, Absent::free, "Docker builds and runs it"},
    {"docker-compose.y*", "", HostRun::on_persons_act, Absent::free,
     "the same, with directories of the host"},
    {"compose.y*", "", HostRun::on_persons_act, Absent::free,
     "the same, with directories of the host"},
    {"Vagrantfile", "", HostRun::on_persons_act, Absent::free, "Vagrant runs it"},
    {"Tiltfile", "", HostRun::on_persons_act, Absent::free, "Tilt runs it"},
    {"flake.nix", "", HostRun::on_persons_act, Absent::free, "Nix builds what it describes"},
    {"shell.nix", "", HostRun::on_persons_act, Absent::free, "the same"},
    {"devbox.json", "", HostRun::on_persons_act, Absent::free, "devbox runs its start commands"},
    {"devenv.nix", "", HostRun::on_persons_act, Absent::free, "devenv runs its start commands"},
    {"Procfile", "", HostRun::on_persons_act, Absent::free,
     "foreman and tools like it run its commands"},
};

// Directories of installed things, which are neither searched nor told of.
inline constexpr std::string_view vendored_directories[] = {
    "node_modules", ".venv",       "venv",        "site-packages",
    "vendor",       "target",      "third_party", "bower_components",
    "Pods",         ".tox",        ".nox",        ".gradle",
    ".terraform",   "__pycache__", ".mypy_cache", ".pytest_cache",
    ".ruff_cache",  ".cache",      ".ipybox"};

// Why a file is in the list, where it stands for itself.
constexpr std::string_view reason(const HostRunFile& file) {
    const auto* at = &file;
    while (at->why.starts_with("the same") && at != host_run_files) --at;
    return at->why;
}

// Whether a name that nothing has yet is held by a directory, which programs of the host can fill:
// by a file they could not.
constexpr bool is_held_as_directory(std::string_view name) {
    if (name == ".venv") return true;
    for (const auto& file : host_run_files)
        if (file.absent == Absent::held_directory &&
            file.path.substr(file.path.rfind('/') + 1) == name)
            return true;
    return false;
}

constexpr std::string_view first_part(std::string_view path) {
    return path.substr(0, path.find('/'));
}

// Whether `name` fits `pattern`, in which one `*` stands for any text, none included.
constexpr bool fits(std::string_view pattern, std::string_view name) {
    const auto star = pattern.find('*');
    if (star == std::string_view::npos) return pattern == name;
    const auto before = pattern.substr(0, star), after = pattern.substr(star + 1);
    return name.size() + 1 >= pattern.size() && name.starts_with(before) && name.ends_with(after);
}

}  // namespace ipybox::detail
