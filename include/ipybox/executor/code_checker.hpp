#pragma once
// Looks through a cell before it runs: whether its calls of generated APIs name what is there, and
// pass what it takes. A type checker, ty, does the looking, in a sandbox of its own. What comes of
// it is advice: it allows nothing and stands in nobody's place.
#include <filesystem>
#include <functional>
#include <ipybox/async.hpp>
#include <ipybox/log.hpp>
#include <ipybox/sandbox.hpp>
#include <ipybox/tools/apigen.hpp>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ipybox {

// What a check came to.
struct CheckResult {
    // One line each, safe to show, such as: line 3: run() of files.read_file has no argument "pth".
    // Empty: nothing was found.
    std::vector<std::string> faults;
    std::string problem;  // why the cell could not be checked; empty when it was
};

// Names that mean something generated in the kernel, and what: "mcptools.files" (a module),
// "mcptools.files.read_file:run" (a member of one), "mcptools.files.read_file:Result()" (an
// instance). The kernel says so: what fits nothing known is passed over.
using KnownNames = std::map<std::string, std::string>;

// Where a checker finds things, and its limits.
struct CodeCheckerOptions {
    std::filesystem::path program;    // ty, see find_checker()
    std::filesystem::path directory;  // for its files alone; the sandbox's user can enter it
    std::string python_version;       // of the kernel, as in "3.11"; empty: the checker's default
    Duration limit = std::chrono::seconds(2);         // of a check
    Duration start_limit = std::chrono::seconds(15);  // for the checker to start
    // Whether the workspace has more of a package than was generated: a module `name`, or that
    // name in `module` where this is not empty. Absent: it has not.
    std::function<bool(const std::string& package, const std::string& module,
                       const std::string& name)>
        own_code;
};

// The version of ty that the tests know.
inline constexpr std::string_view checker_version = "0.0.105";

// The type checker beside an interpreter. judge: not where code could have put it. Throws Error:
// missing_dependency (it is not there; says how to install it), denied (code could have written
// it).
std::filesystem::path find_checker(const std::filesystem::path& python, bool judge = true);

// One type checker, started by the first check and kept. One thread; one check at a time.
class CodeChecker {
public:
    // Cells longer than this are not checked. Bytes.
    static constexpr std::size_t max_cell = std::size_t{256} << 10;
    static constexpr std::size_t max_names = 500;
    static constexpr std::size_t max_faults = 20;

    // Writes the checker's files, starts nothing. sandbox: must outlive this. Throws Error:
    // io_error (a file cannot be written).
    CodeChecker(asio::any_io_executor executor, Sandbox& sandbox, CodeCheckerOptions options);
    ~CodeChecker();
    CodeChecker(const CodeChecker&) = delete;
    CodeChecker& operator=(const CodeChecker&) = delete;

    // From now on, the package `name` (such as mcptools.files) has these modules. Throws Error:
    // bad_argument (no name of a package), io_error (a file cannot be written).
    void set_package(const std::string& name, std::vector<ToolStub> stubs);

    // Looks through a cell, within options.limit, and start_limit when the checker has to start.
    // Throws nothing but what cancelling throws; a checker that stalls, crashes or cannot be
    // confined is a `problem`, and the next check starts another.
    awaitable<CheckResult> check(std::string cell, KnownNames names);

    // Ends the checker's process, if there is one; the next check starts another.
    void stop() noexcept;

private:
    struct Impl;
    std::shared_ptr<Impl> impl_;
};

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/executor/impl/code_checker.ipp>
#endif
