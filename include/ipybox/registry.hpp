#pragma once
// Finds plugins by kind and name: linked into the program, or in shared objects of the search path.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <boost/dll/library_info.hpp>
#include <boost/dll/runtime_symbol_info.hpp>
#include <boost/dll/shared_library.hpp>
#include <boost/json/parse.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <ipybox/detail/json_schema.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/error.hpp>
#include <ipybox/plugin.hpp>
#include <ipybox/sandbox_kit/guarded_sandbox.hpp>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace ipybox {

// Where `meson install` puts the plugins; a program without ipybox's compiled part does not have
// it.
[[gnu::weak]] extern const char* const installed_plugin_directory;

// Plugins stay loaded forever: Asio keeps pointers into them while an io_context lives. Not
// thread-safe; one registry may serve several executors of one thread.
class PluginRegistry {
public:
    // A plugin, and where it was found.
    struct Entry {
        const Plugin* plugin;
        std::filesystem::path file;  // the program itself for a plugin that is linked in
    };

    // A registry that knows the plugins of the program, of $IPYBOX_PLUGIN_PATH (directories
    // separated by colons), of the build tree the program lies in or, failing that, of the
    // installation.
    static PluginRegistry standard() {
        PluginRegistry registry;
        registry.load_program();
        if (const char* path = std::getenv("IPYBOX_PLUGIN_PATH")) {
            std::string_view rest = path;
            while (!rest.empty()) {
                const auto colon = std::min(rest.find(':'), rest.size());
                if (colon > 0) registry.add_directory(rest.substr(0, colon));
                rest.remove_prefix(std::min(colon + 1, rest.size()));
            }
        }
        std::error_code ignored;
        const auto beside = program().parent_path() / "plugins";
        const std::filesystem::path installed =
            &installed_plugin_directory ? installed_plugin_directory : "";
        if (std::filesystem::is_directory(beside, ignored)) {
            registry.add_directory(beside);
        } else if (std::filesystem::is_directory(installed, ignored)) {
            registry.add_directory(installed);
        }
        return registry;
    }

    // Adds a directory to search: <directory>/<kind>/<name>.so and <directory>/<name>.so. Files
    // are loaded when their plugin is first asked for. One that is searched already stays as it
    // is. Throws Error: bad_plugin (it is no directory).
    void add_directory(const std::filesystem::path& directory) {
        std::error_code error;
        if (!std::filesystem::is_directory(directory, error))
            throw Error(errc::bad_plugin, directory.string() +
                                              ": not a directory; correct IPYBOX_PLUGIN_PATH or "
                                              "the plugin directory");
        for (const auto& known : directories_)
            if (std::filesystem::equivalent(known, directory, error)) return;
        directories_.push_back(directory);
    }

    // Adds every plugin of a shared object, whose code runs only if it shows plugins of this API
    // version, and lies where no code in a sandbox could write. Throws Error: bad_plugin (it has
    // none, or cannot be loaded; says what to do).
    void load(const std::filesystem::path& file) {
        if (const auto place = writable_places().holds(std::filesystem::absolute(file)))
            throw Error(errc::bad_plugin,
                        file.string() + ": is not loaded, because code in a sandbox could write " +
                            place->string() + ": install it elsewhere");
        const auto names = symbols(file);
        if (names.empty())
            throw Error(errc::bad_plugin,
                        file.string() +
                            ": holds no plugin of ipybox API " IPYBOX_STRING(
                                IPYBOX_API_VERSION) "; build it against this version's headers");
        add_symbols(file, names);
    }

    // Adds the plugins that are linked into the program, if any. Throws Error: bad_plugin (two have
    // the same name).
    void load_program() { add_symbols(program(), symbols(program())); }

    // Adds one descriptor. `holder` is the file it comes from, for messages. Throws Error:
    // bad_plugin (it was built for another program, or another plugin has its name).
    void add(const Plugin& plugin, const std::filesystem::path& holder) {
        if (std::strcmp(plugin.abi, abi_tag) != 0)
            throw Error(errc::bad_plugin, holder.string() + ": built for [" + plugin.abi +
                                              "], this program is [" + abi_tag +
                                              "]; rebuild the plugin with the same versions");
        if (plugin.anchor != &process_anchor)
            throw Error(errc::bad_plugin,
                        holder.string() +
                            ": does not share the program's symbols; link the program with "
                            "-Wl,--export-dynamic, and build the plugin without hidden "
                            "visibility or -Bsymbolic");
        const Key key{kind_of(plugin), plugin.name};
        const auto [place, fresh] = plugins_.try_emplace(key, Entry{&plugin, holder});
        if (!fresh && place->second.plugin != &plugin)
            refuse_duplicate(key, place->second.file, holder);
    }

    // Every plugin that can be found, by kind and name. Files that cannot be loaded are passed to
    // `on_error` (file, message). Throws Error: bad_plugin (there is such a file, and no
    // `on_error`).
    std::vector<Entry> list(const std::function<void(const std::filesystem::path&,
                                                     const std::string&)>& on_error = {}) {
        for (const auto& file : files()) {
            try {
                load_once(file);
            } catch (const Error& error) {
                if (!on_error) throw;
                on_error(file, error.detail());
            }
        }
        std::vector<Entry> all;
        for (const auto& [key, entry] : plugins_) all.push_back(entry);
        return all;
    }

    // The program, the directories that are searched and the files that were loaded.
    std::vector<std::filesystem::path> in_use() const {
        std::vector<std::filesystem::path> all{program()};
        all.insert(all.end(), directories_.begin(), directories_.end());
        all.insert(all.end(), loaded_.begin(), loaded_.end());
        return all;
    }

    // Makes an object of the plugin `name`. Throws Error: no_such_plugin (none has that name; names
    // those that exist), bad_config (`config` does not fit; names the field), and what the plugin's
    // factory throws. `host` must outlive the object. A sandbox comes in a GuardedSandbox.
    template <class Interface>
    std::unique_ptr<Interface> make(std::string_view name, Host& host, const json::object& config) {
        const Plugin& plugin = find(kind_name<Interface>(), name);
        json::parse_options options;
        const json::value schema = json::parse(std::string(plugin.config_schema), {}, options);
        if (const auto problem = detail::validate(schema, config))
            throw Error(errc::bad_config, std::string(kind_of(plugin)) + " " + std::string(name) +
                                              ": " + *problem +
                                              "; `ipybox plugins` shows the schema");
        auto made = std::get<Factory<Interface>>(plugin.make)(host, config);
        if constexpr (std::is_same_v<Interface, Sandbox>)
            return std::make_unique<GuardedSandbox>(std::move(made), std::string(name));
        else
            return made;
    }

private:
    using Key = std::pair<std::string_view, std::string_view>;  // kind, name

    template <class Interface>
    static constexpr std::string_view kind_name() {
        Plugin probe{.name = {}, .summary = {}, .config_schema = {}, .make = Factory<Interface>{}};
        return kind_of(probe);
    }

    static std::filesystem::path program() {
        return std::filesystem::path(boost::dll::program_location().string());
    }

    static std::vector<std::string> symbols(const std::filesystem::path& file) {
        // By a handle that opens nothing: opening a FIFO would wait, and a device might act.
        const UniqueFd handle(::open(file.c_str(), O_PATH | O_CLOEXEC));
        struct stat about{};
        if (!handle || ::fstat(handle.get(), &about) != 0)
            throw Error(errc::bad_plugin,
                        file.string() + ": cannot be opened: " + std::strerror(errno));
        if (!S_ISREG(about.st_mode))
            throw Error(
                errc::bad_plugin,
                file.string() + ": not a regular file; remove it from the plugin directory");
        try {
            return boost::dll::library_info("/proc/self/fd/" + std::to_string(handle.get()))
                .symbols(IPYBOX_SECTION);
        } catch (const std::exception& error) {
            throw Error(errc::bad_plugin,
                        file.string() + ": not a shared object (" + error.what() + ")");
        }
    }

    void add_symbols(const std::filesystem::path& file, const std::vector<std::string>& names) {
        if (names.empty()) return;
        namespace dll = boost::dll;
        const auto mode =
            dll::load_mode::rtld_now | static_cast<dll::load_mode::type>(RTLD_NODELETE);
        boost::system::error_code error;
        dll::shared_library library;
        library.load(file.string(), error, mode);
        if (error) {
            const char* loader = ::dlerror();  // the error code does not tell what is missing
            std::string why = loader != nullptr ? loader : error.message();
            if (why.find("undefined symbol") != why.npos)
                why += "; link the program with -Wl,--export-dynamic and all of ipybox_program_dep";
            throw Error(errc::bad_plugin, file.string() + ": " + why);
        }
        for (const auto& name : names) add(*library.get<const Plugin*>(name), file);
    }

    const Plugin& find(std::string_view kind, std::string_view name) {
        if (const auto found = plugins_.find(Key{kind, name}); found != plugins_.end())
            return *found->second.plugin;
        std::filesystem::path match;
        for (const auto& directory : directories_) {
            for (const auto& folder : {directory / kind, directory}) {
                const auto file = folder / (std::string(name) + ".so");
                std::error_code ignored;
                if (name.find('/') != name.npos || !std::filesystem::exists(file, ignored))
                    continue;
                if (!match.empty()) refuse_duplicate(Key{kind, name}, match, file);
                match = file;
            }
        }
        if (!match.empty()) load_once(match);
        if (!plugins_.contains(Key{kind, name})) list([](const auto&, const auto&) {});
        if (const auto found = plugins_.find(Key{kind, name}); found != plugins_.end())
            return *found->second.plugin;
        std::string existing;
        for (const auto& [key, entry] : plugins_)
            if (key.first == kind)
                existing += (existing.empty() ? "" : ", ") + std::string(key.second);
        throw Error(
            errc::no_such_plugin,
            "no " + std::string(kind) + " plugin is named \"" + std::string(name) +
                "\"; there are: " + (existing.empty() ? "none" : existing) +
                (directories_.empty() ? " (no plugin directory found; set IPYBOX_PLUGIN_PATH)"
                                      : ""));
    }

    std::vector<std::filesystem::path> files() const {
        std::vector<std::filesystem::path> found;
        for (const auto& directory : directories_) {
            std::error_code ignored;
            for (std::filesystem::recursive_directory_iterator at(directory, ignored), end;
                 at != end; at.increment(ignored)) {
                if (at.depth() > 0 && at->is_directory(ignored)) at.disable_recursion_pending();
                if (at->path().extension() == ".so") found.push_back(at->path());
            }
        }
        std::sort(found.begin(), found.end());
        return found;
    }

    void load_once(const std::filesystem::path& file) {
        for (const auto& loaded : loaded_)
            if (loaded == file) return;
        load(file);
        loaded_.push_back(file);
    }

    [[noreturn]] static void refuse_duplicate(const Key& key, const std::filesystem::path& first,
                                              const std::filesystem::path& second) {
        throw Error(errc::bad_plugin, "two plugins claim to be " + std::string(key.first) + " \"" +
                                          std::string(key.second) + "\": " + first.string() +
                                          " and " + second.string() + "; remove one");
    }

    std::map<Key, Entry> plugins_;
    std::vector<std::filesystem::path> directories_;
    std::vector<std::filesystem::path> loaded_;
};

}  // namespace ipybox
