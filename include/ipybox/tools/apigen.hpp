#pragma once
// Typed Python packages from the tool lists of MCP servers. generate_package() is pure: tools in,
// files out; write_package() puts them on disk in one step. The generated modules run on
// python/ipybox_kernel/models.py. All functions may be called on any thread; none can be cancelled.
#include <boost/json/array.hpp>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ipybox {

// A tool that got a module.
struct GeneratedTool {
    std::string tool;    // the name on the wire
    std::string module;  // the Python module
};

// A tool, and why it has no module or an untyped one.
struct SkippedTool {
    std::string tool;
    std::string reason;
};

// What run() of a module is: a function that waits for the tool, beside which run_async() is a
// coroutine, or a coroutine itself, of which run_async() is another name.
enum class ApiStyle { blocking, async };

// The Python package of one server, in memory.
struct GeneratedPackage {
    std::map<std::string, std::string> files;  // file name -> UTF-8 text
    std::vector<GeneratedTool> tools;          // sorted by tool name
    std::vector<SkippedTool> untyped;  // have a module, but one that takes or returns anything
    std::vector<SkippedTool> skipped;  // have none
};

// What a type checker needs to know of a generated module, without what code may have added to it.
struct ToolStub {
    // What run() takes by one name.
    struct Parameter {
        std::string name;
        bool required = false;
    };
    std::string module;  // the Python module
    std::string text;    // of a .pyi file
    // What run() takes by name; none where it takes one object only.
    std::vector<Parameter> parameters;
    std::set<std::string, std::less<>> wire_names;  // of these, or others; run() takes them as well
};

// Ends the generated part of a module. What stands below belongs to the user or the agent and is
// carried over when the package is written again.
inline constexpr std::string_view own_code_marker = "# --- your code below is kept ---\n";

// Whether `init`, the text of a package's __init__.py, is what the original ipybox generates.
bool is_of_original(std::string_view init);

// Checks that a server can be a Python package. Throws Error: bad_argument (the name is no ASCII
// identifier, a keyword, or longer than 64 characters).
void check_server_name(std::string_view name);

// Parses a tools/list result, or its `tools` array alone, nested up to 25,000 levels, and returns
// the array. Half a surrogate pair, which JSON allows and Boost.JSON refuses, becomes the three
// bytes that UTF-8 would give it. Throws Error: bad_argument (the text is something else).
boost::json::array parse_tools(std::string_view text);

// Generates the package of a server from `listed`, the `tools` of its tools/list results. The same
// tools in any order give the same bytes. A tool whose schemas cannot be typed gets a module that
// takes any arguments; a tool that cannot have a module is listed in `skipped`. Throws Error:
// bad_argument (a bad server name).
GeneratedPackage generate_package(std::string_view server_name, const boost::json::array& listed,
                                  ApiStyle style = ApiStyle::blocking);

// What generate_package() makes of the same tools, for a type checker. Tools without a module are
// left out.
std::vector<ToolStub> generate_stubs(const boost::json::array& listed,
                                     ApiStyle style = ApiStyle::blocking);

// What write_package() would do, one line a file: "+ new.py", "~ changed.py", "- gone.py", the last
// followed by " with own code" when a tool that is gone takes such code along. Throws Error:
// bad_argument (a bad server name), io_error (a file cannot be read).
std::vector<std::string> package_changes(const std::filesystem::path& root_dir,
                                         std::string_view server_name,
                                         const GeneratedPackage& package);

// Replaces root_dir/server_name by the package in one step: readers see the old or the new one, and
// a failure leaves the old one and nothing else. What stands below own_code_marker in a module that
// stays is kept, and so are files that others put there. Where such a file has the name of one that
// is written, or the original ipybox generated the package, all of the old package is kept beside
// the new one, and *kept_as becomes its name in root_dir, else empty. root_dir is made when it is
// absent. Returns false, and writes nothing, when all files are as they should be. Run as root, the
// files belong to the owner of root_dir. Throws Error: bad_argument (a bad server name), io_error
// (a file cannot be read or written).
bool write_package(const std::filesystem::path& root_dir, std::string_view server_name,
                   const GeneratedPackage& package, std::string* kept_as = nullptr);

// The same into an open directory, which nobody can exchange for another; the caller keeps it.
bool write_package(int root_dir, std::string_view server_name, const GeneratedPackage& package,
                   std::string* kept_as = nullptr);

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/tools/impl/apigen.ipp>
#include <ipybox/tools/impl/package_writer.ipp>
#endif
