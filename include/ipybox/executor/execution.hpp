#pragma once
// How one execution of a CodeExecutor is to run, and what is told of it beside its text.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <ipybox/async.hpp>
#include <ipybox/kernel_backend.hpp>
#include <optional>
#include <string>
#include <vector>

namespace ipybox {

// What the cell showed, as it comes: display_data, execute_result or update_display_data.
struct CodeExecutionDisplay {
    json::object data;       // a MIME bundle
    json::object metadata;   // of some of its MIME types
    std::string display_id;  // empty: it has none; of 200 bytes at most
    bool is_result = false;  // the value of the cell's last expression
    bool is_update = false;  // takes the place of an earlier display with that display_id
};

// What a result has of the text that came by chunks.
enum class ResultText {
    whole,
    none,  // nothing is kept in memory beyond what waits for next()
};

// How one execution is to run.
struct ExecutionOptions {
    Duration timeout = std::chrono::seconds(120);  // until it is interrupted; zero: never
    // What next() of stream() yields beside ApprovalRequest and, last, CodeExecutionResult.
    bool chunks = false;    // CodeExecutionChunk
    bool displays = false;  // CodeExecutionDisplay; chunks are then without the text of displays
    // ResultText::none for output that is not needed a second time; max_output counts it either
    // way.
    ResultText text = ResultText::whole;
    bool check = false;  // looks through the code first, as CodeExecutorOptions::check does for all
    // Jupyter's `silent`: it leaves no trace in Out, the history and the count of executions, and
    // the value of its last expression is not shown.
    bool silent = false;
    // The result says which files changed, for two walks through the workspace, and how much memory
    // was used.
    bool measure = false;
};

// A file of the workspace that is not as it was before an execution.
struct CodeExecutionFile {
    enum class Change { created, changed, removed };
    std::filesystem::path path;  // relative to the workspace, as code may have chosen it
    Change change = Change::changed;
};

// What the host saw of an execution's effects, whatever the kernel says of itself.
struct CodeExecutionMeasures {
    // Regular files and links, in order of their paths, whoever changed them meanwhile; images that
    // the result names are not among them. Of a kernel that shares no files with this machine none.
    std::vector<CodeExecutionFile> files;
    // False: there were more than max_files, or the workspace has more than 50000 files, of which
    // those near its top were looked at.
    bool files_complete = true;
    static constexpr std::size_t max_files = 1000;
    // Bytes, at their highest since the kernel started, not since the cell did: of all its
    // processes together where a cgroup measures them, else the sum of each one's that still runs.
    // Absent where the kernel is elsewhere or has ended.
    std::optional<std::uint64_t> peak_memory;
};

// What a kernel says of one of its variables, which code there may have forged: all are valid UTF-8
// of 1 KiB at most.
struct CodeVariable {
    std::string name;
    std::string type;  // "module.Class", of Python's own types "Class"
    // Items or characters; bytes of arrays in C such as numpy's; absent of anything else.
    std::optional<std::uint64_t> size;
    std::string repr;  // of Python's own types the value, shortened; of others "<module.Class>"
};

// How what was typed can go on, as a kernel says, in which code may have forged it.
struct CodeCompletions {
    static constexpr std::size_t max_matches = 500;
    std::size_t start = 0;  // in bytes: from there on the text would be replaced
    // What would be put there, the same as the text so far and more; printable valid UTF-8 on one
    // line, in their order, no two alike.
    std::vector<std::string> matches;
};

}  // namespace ipybox
