#pragma once
// Whether a program may start on the host, such as an MCP server: not if code in a sandbox could
// have written what it runs.

#include <algorithm>
#include <array>
#include <filesystem>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/sandbox_kit/host_program.hpp>
#include <ipybox/sandbox_kit/writable_places.hpp>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ipybox::sandbox_kit {

// The words after #! in a script's first line; none for other files.
std::vector<std::string> shebang(const std::filesystem::path& file);

// Finds the first thing that a program's start would run from a place that code could write.
class ProgramJudgement {
public:
    ProgramJudgement(const WritablePlaces& places, const std::vector<std::string>& argv,
                     const std::map<std::string, std::string>& env, std::filesystem::path cwd,
                     bool trust_cwd, std::string_view remedy);

    // Nothing, or why not and the remedy.
    std::optional<std::string> problem();

private:
    void look_at(const std::string& what, const std::filesystem::path& path);

    // A file that is executed, and what its first line has it executed by.
    void look_at_program(const std::string& what, const std::filesystem::path& file, int depth);

    // A script's directory is where its modules are looked for.
    void look_at_directory(const std::filesystem::path& script);

    // Arguments that name code, of programs that are known to run what their arguments name.
    void look_at_arguments(const std::filesystem::path& program, std::size_t from);

    void look_behind_wrapper(std::size_t from);

    void look_at_environment();

    std::string_view path_variable() const;

    template <std::size_t size>
    static bool among(std::string_view name, const std::array<std::string_view, size>& names) {
        return std::find(names.begin(), names.end(), name) != names.end();
    }
    static bool runs_arguments(std::string_view name);
    // Words of package runners that come before what they run.
    static bool is_command_of_runner(std::string_view word);
    // What follows is the code to run, or names it.
    static bool is_code(std::string_view flag);
    static bool takes_value(std::string_view flag);
    static bool is_script(std::string_view text);

    const WritablePlaces& places_;
    const std::vector<std::string>& argv_;
    const std::map<std::string, std::string>& env_;
    std::filesystem::path cwd_;
    std::string_view remedy_;
    bool trusts_ = false;
    std::optional<std::filesystem::path> trusted_;  // the place that its cwd lies in
    std::optional<std::string> problem_;
};

// Why a program may not start unconfined, with the remedy; nothing when it may. Refused are a cwd,
// command, script (with its directory), interpreter, directory of PATH and the like, and file of
// HOME that lie where code in a sandbox could write: `trust_cwd` says that whoever configures
// answers for the place in which `cwd` lies. argv[0], cwd: absolute. Arguments are looked at for
// interpreters and package runners that are known. remedy: what to do; empty: the words for MCP
// servers. Throws what WritablePlaces::holds() throws.
std::optional<std::string> judge_program(const WritablePlaces& places,
                                         const std::vector<std::string>& argv,
                                         const std::map<std::string, std::string>& env,
                                         const std::filesystem::path& cwd, bool trust_cwd,
                                         std::string_view remedy = {});

}  // namespace ipybox::sandbox_kit

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/sandbox_kit/impl/program_judgement.ipp>
#endif
