#pragma once
// The interpreter that kernels run on: which one it is, and what of the disk it needs.
#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/json/parse.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <ipybox/async.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/error.hpp>
#include <ipybox/sandbox_kit/file_state.hpp>
#include <ipybox/sandbox_kit/host_program.hpp>
#include <ipybox/sandbox_kit/process.hpp>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace ipybox {

// What an interpreter says of itself.
struct PythonEnvironment {
    std::filesystem::path executable;             // as configured, its directory without links
    std::string version;                          // "3.11.2"
    std::string implementation;                   // "cpython", "pypy"
    std::vector<std::filesystem::path> readable;  // directories it reads outside /usr
    std::optional<std::string> ipykernel;         // version, absent when not installed
    std::optional<std::string> pydantic;
    bool pip = false;      // its own pip can install packages
    bool managed = false;  // by the system (PEP 668): pip refuses to install into it
    // Files and directories that decide about the rest, some of which may not be there.
    std::vector<std::filesystem::path> sources;
};

namespace sandbox_kit {
// Throws Error: denied (code could have changed what an interpreter runs before any script: itself,
// or what tells it where its library is).
inline void refuse_written_python(const std::filesystem::path& python) {
    constexpr std::string_view remedy =
        "name it with --python or IPYBOX_PYTHON if what lies there is yours";
    refuse_written(python, remedy);
    for (const auto& path : environment_files(python)) refuse_written(path, remedy);
}

// The interpreter of the virtual environment that `program` was installed into, whatever links led
// to it; nullopt when that was none. program: by default the one that is running.
inline std::optional<std::filesystem::path> python_of_installation(
    const std::filesystem::path& program = "/proc/self/exe") {
    std::error_code error;
    const auto directory = std::filesystem::canonical(program, error).parent_path();
    if (error || !std::filesystem::is_regular_file(directory.parent_path() / "pyvenv.cfg", error))
        return std::nullopt;
    return directory / "python";
}
}  // namespace sandbox_kit

// The interpreter to use: `configured`, else $IPYBOX_PYTHON, that of the virtual environment that
// this program was installed into, $VIRTUAL_ENV/bin/python, .venv/bin/python in the current
// directory, python3 on PATH. The first two are the word of whoever configures; of the others,
// Trust::judged passes over directories of PATH in which code could write. Throws Error:
// missing_dependency (there is none), denied (with Trust::judged: one of the others lies where code
// could write).
inline std::filesystem::path find_python(const std::filesystem::path& configured = {},
                                         Trust trust = Trust::judged) {
    namespace fs = std::filesystem;
    const auto variable = [](const char* name) {
        const char* value = std::getenv(name);
        return std::string(value == nullptr ? "" : value);
    };
    const std::string path = variable("PATH");
    const auto resolved = [](const fs::path& file) {
        // A sandbox shows real directories; the file itself stays: it tells Python of its venv.
        std::error_code error;
        const auto directory = fs::canonical(file.parent_path(), error);
        return error ? file : directory / file.filename();
    };
    for (const auto& [wanted, source] :
         {std::pair(configured.string(), "--python or the python option"),
          std::pair(variable("IPYBOX_PYTHON"), "IPYBOX_PYTHON")}) {
        if (wanted.empty()) continue;
        if (const auto found =
                find_program(wanted, path, wanted.find('/') != wanted.npos ? Trust::named : trust))
            return resolved(*found);
        throw Error(errc::missing_dependency,
                    std::string(source) + " names " + wanted +
                        ", which is no executable file; name a Python interpreter");
    }
    std::vector<std::string> candidates;
    // It was made for this program; one that is active may be anybody's.
    if (const auto own = sandbox_kit::python_of_installation()) candidates.push_back(own->string());
    if (const auto venv = variable("VIRTUAL_ENV"); !venv.empty())
        candidates.push_back(venv + "/bin/python");
    candidates.push_back("./.venv/bin/python");
    candidates.push_back("python3");
    for (const auto& candidate : candidates) {
        const auto in_path = candidate.find('/') == candidate.npos;
        const auto found = find_program(candidate, path, in_path ? trust : Trust::named);
        if (!found) continue;
        // As found: a link among its directories counts.
        if (trust == Trust::judged) sandbox_kit::refuse_written_python(*found);
        return resolved(*found);
    }
    throw Error(
        errc::missing_dependency,
        "no Python interpreter found; install python3, or name one with --python or IPYBOX_PYTHON");
}

namespace sandbox_kit {
// Runs with -I -S: no start-up file, .pth file or package of the interpreter runs, whose rights
// would be the host's. So it works out itself what the module site would: where the packages lie.
inline constexpr const char* inspection = R"(
import os, sys
prefixes = [sys.prefix]
directory = os.path.dirname(os.path.abspath(sys.executable))
sources = [os.path.join(directory, "pyvenv.cfg"), os.path.join(os.path.dirname(directory), "pyvenv.cfg")]
for cfg in sources:
    if os.path.isfile(cfg):
        with open(cfg, encoding="utf-8", errors="replace") as lines:
            pairs = [line.split("=", 1) for line in lines.read(65536).splitlines() if "=" in line]
        values = {key.strip().lower(): value.strip() for key, value in pairs}
        system = values.get("include-system-site-packages", "").lower() == "true"
        prefixes = [os.path.dirname(directory), *([sys.base_prefix] if system else [])]
        sys.prefix = sys.exec_prefix = prefixes[0]
        break
import json, site, sysconfig
from importlib.metadata import Distribution
packages = []
for path in [p for prefix in prefixes for p in site.getsitepackages([prefix])]:
    if path in packages or not os.path.isdir(path):
        continue
    packages.append(path)
    for name in sorted(os.listdir(path)):
        if not name.endswith(".pth") or name.startswith(".") or not os.path.isfile(os.path.join(path, name)):
            continue
        sources.append(os.path.join(path, name))
        with open(os.path.join(path, name), encoding="utf-8", errors="replace") as lines:
            for line in lines.read(65536).splitlines():
                line = line.rstrip()
                if line and not line.startswith(("#", "import ", "import\t")):
                    added = os.path.abspath(os.path.join(path, line))
                    if added not in packages and os.path.isdir(added):
                        packages.append(added)
def version(name):
    for found in Distribution.discover(name=name, path=packages):
        return found.version
def steps(path):
    while os.path.islink(path):
        yield os.path.dirname(path)
        path = os.path.join(os.path.dirname(path), os.readlink(path))
    yield os.path.dirname(path)
paths = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, *steps(sys.executable),
         *sysconfig.get_paths().values(), *sys.path, *packages]
if sysconfig.get_config_var("Py_ENABLE_SHARED"):
    paths.append(sysconfig.get_config_var("LIBDIR") or "")
print(json.dumps({"version": sys.version.split()[0], "implementation": sys.implementation.name, "ipykernel": version("ipykernel"),
                  "pydantic": version("pydantic"), "pip": version("pip") is not None,
                  "managed": sys.prefix == sys.base_prefix and
                             os.path.exists(os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")),
                  "paths": [p for p in paths if os.path.isdir(p)],
                  "sources": [sys.executable, *sources, *paths]}))
)";

// Appends what a process writes to its standard output, at most `limit` bytes of it.
inline awaitable<void> read_output(ChildProcess& process, std::size_t limit, std::string& text) {
    char chunk[4096];
    while (text.size() < limit) {
        auto [error, size] =
            co_await process.output().async_read_some(asio::buffer(chunk), as_result);
        if (error) break;
        text.append(chunk, size);
    }
}

// Runs a program and returns what it printed; nullopt when it took longer than `limit`.
inline awaitable<std::optional<std::string>> output_of(ChildProcess& process, Duration limit) {
    std::string text;
    auto work = read_output(process, 1 << 20, text);
    auto late = sleep_until(Clock::now() + limit);
    const bool done = co_await ends_first(std::move(work), std::move(late));
    co_return done ? std::optional(std::move(text)) : std::nullopt;
}

// The directories without those inside others or in /usr, which every sandbox shows.
inline std::vector<std::filesystem::path> outermost(const json::array& paths) {
    std::vector<std::string> all;
    for (const auto& path : paths)
        if (path.is_string() && path.get_string().starts_with("/"))
            all.push_back(
                std::filesystem::path(std::string(path.get_string())).lexically_normal().string());
    for (auto& path : all)
        while (path.size() > 1 && path.back() == '/') path.pop_back();
    std::sort(all.begin(), all.end());
    std::vector<std::filesystem::path> kept;
    std::string last = "/usr";
    for (const auto& path : all) {
        if (path == "/" || path == last || path.starts_with(last + "/") ||
            path.starts_with("/usr/") || path == "/usr")
            continue;
        kept.push_back(path);
        last = path;
    }
    return kept;
}

inline bool at_least(const std::string& text, int major, int minor) {
    int have_major = 0, have_minor = 0;
    std::sscanf(text.c_str(), "%d.%d", &have_major, &have_minor);
    return std::pair(have_major, have_minor) >= std::pair(major, minor);
}
}  // namespace sandbox_kit

// Runs `python` once with this process's rights, isolated from the current directory, the user's
// variables, and all packages and start-up files of the interpreter, of which none runs:
// directories that only start-up code adds to Python's path are not found. python: as find_python()
// returns it. limit: how long it may take. Throws Error: missing_dependency (it is no Python
// interpreter of at least 3.10), io_error (it cannot be started); packages may be absent in the
// answer, see package_problem().
inline awaitable<PythonEnvironment> inspect_python(asio::any_io_executor executor,
                                                   std::filesystem::path python, Duration limit) {
    SpawnRequest request;
    request.argv = {python.string(), "-I", "-S", "-c", sandbox_kit::inspection};
    request.env["PATH"] = "/usr/local/bin:/usr/bin:/bin";
    request.env["LANG"] = "C.UTF-8";
    request.stdio = Stdio::pipes;
    ChildProcess process(executor, std::move(request));
    const auto output = co_await sandbox_kit::output_of(process, limit);
    const std::string name = python.string();
    if (!output)
        throw Error(errc::missing_dependency,
                    name + " did not answer in time; is it a Python interpreter?");
    boost::system::error_code error;
    // What start-up files of the interpreter print comes before the answer.
    std::string_view printed = *output;
    printed = printed.substr(0, printed.find_last_not_of('\n') + 1);
    const auto value = json::parse(printed.substr(printed.rfind('\n') + 1), error);
    const auto* answer = error ? nullptr : value.if_object();
    const auto* version = answer ? detail::find_string(*answer, "version") : nullptr;
    const auto* paths = answer ? answer->if_contains("paths") : nullptr;
    if (!version || !paths || !paths->is_array())
        throw Error(
            errc::missing_dependency,
            name + " is not a working Python interpreter; it printed: " + process.output_tail());
    PythonEnvironment found;
    found.executable = std::move(python);
    found.version = *version;
    if (const auto* kind = detail::find_string(*answer, "implementation"))
        found.implementation = *kind;
    found.readable = sandbox_kit::outermost(paths->get_array());
    if (const auto* sources = answer->if_contains("sources"); sources && sources->is_array())
        for (const auto& source : sources->get_array())
            if (source.is_string()) found.sources.emplace_back(std::string(source.get_string()));
    const auto package = [&](const char* key) -> std::optional<std::string> {
        const auto* text = detail::find_string(*answer, key);
        return text ? std::optional<std::string>(*text) : std::nullopt;
    };
    found.ipykernel = package("ipykernel");
    found.pydantic = package("pydantic");
    const auto says = [&](const char* key) {
        const auto* flag = answer->if_contains(key);
        return flag && flag->is_bool() && flag->get_bool();
    };
    found.managed = says("managed");
    found.pip = says("pip");
    if (!sandbox_kit::at_least(found.version, 3, 10))
        throw Error(errc::missing_dependency,
                    name + " is Python " + found.version + "; 3.10 or newer is needed");
    co_return found;
}

// As inspect_python(), which runs only if anything that decides about its answer has changed since
// it last did in this process. From any thread.
inline awaitable<PythonEnvironment> known_python(asio::any_io_executor executor,
                                                 std::filesystem::path python, Duration limit) {
    struct Known {
        PythonEnvironment environment;
        std::string state;
    };
    static std::mutex mutex;
    static std::map<std::filesystem::path, Known> all;
    const auto state_of = [](const PythonEnvironment& environment) {
        std::string text = sandbox_kit::file_state(environment.executable);
        for (const auto& source : environment.sources) text += sandbox_kit::file_state(source);
        return text;
    };
    {
        const std::lock_guard lock(mutex);
        const auto known = all.find(python);
        if (known != all.end() && state_of(known->second.environment) == known->second.state)
            co_return known->second.environment;
    }
    Known found;
    found.environment = co_await inspect_python(std::move(executor), python, limit);
    found.state = state_of(found.environment);
    const std::lock_guard lock(mutex);
    all.insert_or_assign(std::move(python), found);
    co_return std::move(found.environment);
}

namespace sandbox_kit {
// What to do about packages that a kernel needs and `environment` lacks.
inline std::string packages_remedy(const PythonEnvironment& environment) {
    const std::string python = environment.executable.string(),
                      packages = " ipykernel 'pydantic>=2.7'",
                      install = " -m pip install" + packages;
    // The system's Python takes no packages but the system's.
    if (environment.managed)
        return "make an environment of your own with `" + python +
               " -m venv ~/.ipybox-python && ~/.ipybox-python/bin/python" + install +
               " && export IPYBOX_PYTHON=~/.ipybox-python/bin/python` (where venv fails, first: "
               "apt-get install python3-venv)";
    if (environment.pip) return "install it with `" + python + install + "`";
    // uvx makes its environments in its cache, where nothing is installed afterwards; the mark of a
    // cache in an environment itself is for backups.
    std::error_code ignored;
    const auto prefix = environment.executable.parent_path().parent_path();
    for (auto place = prefix; place.has_relative_path(); place = place.parent_path())
        if (std::filesystem::exists(place.parent_path() / "CACHEDIR.TAG", ignored))
            return "start ipybox with `uvx --with ipykernel --with 'pydantic>=2.7' …`, or name a "
                   "Python that has them in IPYBOX_PYTHON";
    return "that environment has no pip; install it with `uv pip install --python " + python +
           packages + "`";
}
}  // namespace sandbox_kit

// What is wrong with the packages a kernel needs, with the remedy; empty when nothing is.
inline std::string package_problem(const PythonEnvironment& environment) {
    const std::string remedy = "; " + sandbox_kit::packages_remedy(environment);
    if (!environment.ipykernel)
        return environment.executable.string() + " has no ipykernel" + remedy;
    if (!environment.pydantic) return environment.executable.string() + " has no pydantic" + remedy;
    if (!sandbox_kit::at_least(*environment.pydantic, 2, 7))
        return environment.executable.string() + " has pydantic " + *environment.pydantic +
               ", 2.7 or newer is needed" + remedy;
    return {};
}

}  // namespace ipybox
