#include "preload.hpp"

#include <ipybox/detail/within.hpp>
#include <ipybox/sandbox_kit/file_state.hpp>
#include <ipybox/sandbox_kit/writable_places.hpp>
#include <sstream>
#include <system_error>

namespace ipybox::forked {
namespace {

namespace fs = std::filesystem;
using sandbox_kit::file_state;

// More entries than this are not looked through.
constexpr std::size_t most_entries = 20'000;

// What Python and its libraries read when they start, which in a fork is over.
bool comes_too_late(std::string_view name, std::string_view value) {
    if (name == "PYTHONPATH") return false;  // the kernel sets its path
    if (name == "LANG" || name == "LC_ALL") return value != "C.UTF-8";
    if (name == "HOME") return value != "/home/user";
    for (const std::string_view start :
         {"PYTHON", "OMP_", "GOMP_", "KMP_", "OPENBLAS_", "GOTO_", "MKL_", "BLIS_", "NUMEXPR_",
          "LD_", "MALLOC_", "GLIBC_TUNABLES", "LC_", "MPL", "NPY_", "IPYTHON"})
        if (name.starts_with(start)) return true;
    return false;
}

}  // namespace

std::vector<fs::path> package_directories(const KernelSpec& spec) {
    std::vector<fs::path> found;
    std::vector<fs::path> libraries = {"/usr/lib", "/usr/local/lib"};
    for (const auto& prefix : spec.interpreter)
        for (const auto* name : {"lib", "lib64"}) libraries.push_back(prefix / name);
    for (const auto& library : libraries) {
        std::error_code error;
        for (fs::directory_iterator entry(library, error), end; !error && entry != end;
             entry.increment(error)) {
            if (!entry->path().filename().string().starts_with("python3")) continue;
            for (const auto* name : {"site-packages", "dist-packages"}) {
                std::error_code ignored;
                if (fs::is_directory(entry->path() / name, ignored))
                    found.push_back(entry->path() / name);
            }
        }
    }
    return found;
}

std::string unfit(Sandbox& sandbox, const KernelSpec& spec,
                  const std::vector<std::filesystem::path>& packages) {
    if (sandbox.pen_key(spec.policy).empty()) return "this sandbox cannot be entered";
    for (const auto& [name, value] : spec.policy.env)
        if (comes_too_late(name, value))
            return "the environment variable " + name + " is read when Python starts";
    // What a warm process has loaded, all later kernels run: code must not have been able to write
    // it, in this session or in another.
    auto places = spec.interpreter;
    places.push_back(spec.python);
    for (const auto& place : places) {
        for (const auto& writable : spec.policy.writable)
            if (detail::within(place, writable))
                return "the interpreter lies in " + writable.string() + ", which code can write";
        if (const auto held = writable_places().holds(place))
            return "the interpreter lies in " + held->string() + ", which code could write";
    }
    for (const auto& place : packages)
        if (const auto held = writable_places().holds(place))
            return "packages lie in " + held->string() + ", which code could write";
    return {};
}

std::string zygote_key(Sandbox& sandbox, const KernelSpec& spec,
                       const std::vector<std::filesystem::path>& packages,
                       const std::vector<std::string>& preload) {
    std::ostringstream key;
    key << sandbox.pen_key(spec.policy) << '\n' << spec.python << file_state(spec.python) << '\n';
    for (const auto& place : packages) key << place << file_state(place) << '\n';
    for (const auto& name : preload) key << name << ' ';
    return key.str();
}

std::string shadowed(const KernelSpec& spec, const std::string& library,
                     const std::set<std::string>& modules) {
    const auto path = spec.policy.env.find("PYTHONPATH");
    if (path == spec.policy.env.end()) return {};
    std::istringstream entries(path->second);
    for (std::string place; std::getline(entries, place, ':');) {
        if (place.empty() || place == library) continue;
        std::error_code error;
        std::size_t count = 0;
        for (fs::directory_iterator entry(place, error), end; !error && entry != end;
             entry.increment(error)) {
            if (++count > most_entries) return place;
            const auto name = entry->path().filename().string();
            const auto module = name.substr(0, name.find('.'));
            if (name != "ipybox_kernel" && modules.contains(module)) return module + " in " + place;
        }
    }
    return {};
}

}  // namespace ipybox::forked
