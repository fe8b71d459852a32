#pragma once
// Finds plugins by kind and name: linked into the program, or in shared objects of the search path.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <boost/dll/library_info.hpp>
#include <boost/dll/runtime_symbol_info.hpp>
#include <boost/dll/shared_library.hpp>
#include <boost/json/parse.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <ipybox/detail/build_info.hpp>
#include <ipybox/detail/config_schema.hpp>
#include <ipybox/detail/json_schema.hpp>
#include <ipybox/detail/unique_fd.hpp>
#include <ipybox/error.hpp>
#include <ipybox/plugin.hpp>
#include <ipybox/sandbox_kit/guarded_sandbox.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace ipybox {

// Where `meson install` puts the plugins; a program without ipybox's compiled part does not have
// it.
[[gnu::weak]] extern const char* const installed_plugin_directory;

// Plugins stay loaded forever: Asio keeps pointers into them while an io_context lives. All but
// moving it may be called from any thread: one registry serves the executors of all.
class PluginRegistry final : private OtherPlugins {
public:
    // A plugin, and where it was found.
    struct Entry {
        const Plugin* plugin;
        std::filesystem::path file;  // the program itself for a plugin that is linked in
    };

    // A registry that knows the plugins of the program, of `directories`, of $IPYBOX_PLUGIN_PATH
    // (directories separated by colons), of plugins/ beside the program, as in a build tree, and of
    // the installation: of these two, what is in both is taken from beside the program, and what is
    // no plugin there is another's business. Throws what load_program() and add_directory() throw.
    static PluginRegistry standard(const std::vector<std::filesystem::path>& directories = {}) {
        PluginRegistry registry;
        registry.load_program();
        for (const auto& directory : directories) registry.add_directory(directory);
        if (const char* path = std::getenv("IPYBOX_PLUGIN_PATH")) {
            std::string_view rest = path;
            while (!rest.empty()) {
                const auto colon = std::min(rest.find(':'), rest.size());
                if (colon > 0) registry.add_directory(rest.substr(0, colon));
                rest.remove_prefix(std::min(colon + 1, rest.size()));
            }
        }
        registry.add_standard(program().parent_path() / "plugins",
                              &installed_plugin_directory ? installed_plugin_directory : "");
        return registry;
    }

    // Adds the two last places of standard(), of which either may be absent.
    void add_standard(const std::filesystem::path& beside, const std::filesystem::path& installed) {
        const std::lock_guard lock(turn_);
        std::error_code ignored;
        if (std::filesystem::is_directory(beside, ignored)) {
            beside_ = beside;
            add_directory(beside);
        }
        if (!std::filesystem::is_directory(installed, ignored)) return;
        if (!std::filesystem::equivalent(beside, installed, ignored)) installed_ = installed;
        add_directory(installed);
    }

    // Adds a directory to search: <directory>/<kind>/<name>.so and <directory>/<name>.so. Files
    // are loaded when their plugin is first asked for. One that is searched already stays as it
    // is. Throws Error: bad_plugin (it is no directory).
    void add_directory(const std::filesystem::path& directory) {
        std::error_code error;
        if (!std::filesystem::is_directory(directory, error))
            throw Error(errc::bad_plugin, directory.string() +
                                              ": not a directory; correct IPYBOX_PLUGIN_PATH or "
                                              "--plugin-dir");
        const std::lock_guard lock(turn_);
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
        const auto shown = examine(file);
        if (shown.names.empty())
            throw Error(errc::bad_plugin, file.string() + ": " + why_none(shown.versions));
        add_symbols(file, shown.names);
    }

    // Adds the plugins that are linked into the program, if any. Throws Error: bad_plugin (two have
    // the same name).
    void load_program() { add_symbols(program(), examine(program()).names); }

    // Adds one descriptor. `holder` is the file it comes from, for messages. Throws Error:
    // bad_plugin (it was built for another program, its schema is none, it makes nothing, or
    // another plugin has its name).
    void add(const Plugin& plugin, const std::filesystem::path& holder) {
        // Nothing else of another's descriptor is read: its name may lie elsewhere.
        if (std::strcmp(plugin.abi, abi_tag) != 0)
            throw Error(errc::bad_plugin,
                        holder.string() + ": built for [" + plugin.abi + "], this program is [" +
                            abi_tag + "]; rebuild it against the headers of this ipybox, " +
                            detail::build_version + ", with the program's compiler and Boost");
        if (plugin.anchor != &process_anchor)
            throw Error(errc::bad_plugin,
                        holder.string() +
                            ": does not share the program's symbols; link the program with "
                            "-Wl,--export-dynamic, and build the plugin without hidden "
                            "visibility or -Bsymbolic");
        check_descriptor(plugin, holder);
        const std::lock_guard lock(turn_);
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
        const std::lock_guard lock(turn_);
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
        const std::lock_guard lock(turn_);
        std::vector<std::filesystem::path> all{program()};
        all.insert(all.end(), directories_.begin(), directories_.end());
        all.insert(all.end(), loaded_.begin(), loaded_.end());
        return all;
    }

    // What makes an object of a plugin that is no shared object; may hold state.
    template <class Interface>
    using Callable = std::function<std::unique_ptr<Interface>(Host&, const json::object&)>;

    // Adds a plugin of the program's own: make<Interface>(name, …) calls `make` with a
    // configuration that fits `config_schema`. Throws Error: bad_plugin (the schema is none, `make`
    // is empty, or another plugin has its name).
    template <class Interface>
    void add(std::string name, Callable<Interface> make,
             std::string config_schema = R"({"type": "object"})",
             std::string summary = "of this program") {
        auto own = std::make_shared<Own>();
        own->texts = {std::move(name), std::move(summary), std::move(config_schema)};
        if (make)
            own->plugin.make = +[](Host&, const json::object&) -> std::unique_ptr<Interface> {
                return nullptr;  // make() calls the callable instead
            };
        else
            own->plugin.make = Factory<Interface>{};
        own->make = std::move(make);
        own->plugin.name = own->texts[0];
        own->plugin.summary = own->texts[1];
        own->plugin.config_schema = own->texts[2];
        const Plugin& plugin = own->plugin;
        const std::lock_guard lock(turn_);  // or it would be found while it is half there
        add(plugin, program());
        own_.emplace(&plugin, std::move(own));
    }

    // Whether a plugin's schema lists this field. Throws what make() throws for its name.
    template <class Interface>
    bool takes(std::string_view name, std::string_view field) {
        const auto schema = json::parse(find(kind_name<Interface>(), name).plugin->config_schema);
        const auto* fields = schema.as_object().if_contains("properties");
        return fields && fields->as_object().contains(field);
    }

    // Makes an object of the plugin `name`. Throws Error: no_such_plugin (none has that name; names
    // those that exist and the places searched), bad_config (`config` does not fit; names the
    // field), bad_plugin (its factory made nothing, or threw what is no Error), and the Errors of
    // its factory, which then name the plugin and its file unless they are bad_config. `host` must
    // outlive the object. A sandbox comes in a GuardedSandbox.
    template <class Interface>
    std::unique_ptr<Interface> make(std::string_view name, Host& host, const json::object& config) {
        const Entry entry = find(kind_name<Interface>(), name);
        const std::string who = std::string(kind_of(*entry.plugin)) + " " + std::string(name);
        const auto schema = json::parse(entry.plugin->config_schema);
        if (const auto problem = detail::validate(schema, config))
            throw Error(errc::bad_config, who + ": " + *problem + "; `ipybox plugins " +
                                              std::string(name) + "` shows the schema");
        auto made = made_by<Interface>(entry, who, host, config);
        if constexpr (std::is_same_v<Interface, Sandbox>)
            return std::make_unique<GuardedSandbox>(std::move(made), std::string(name));
        else
            return made;
    }

private:
    using Key = std::pair<std::string_view, std::string_view>;  // kind, name

    // A registry that is moved has a lock of its own again: nobody else may use it then.
    struct Turn : std::recursive_mutex {
        Turn() = default;
        Turn(Turn&&) noexcept {}
        Turn& operator=(Turn&&) noexcept { return *this; }
    };
    struct Own {
        std::array<std::string, 3> texts;
        std::variant<Callable<Sandbox>, Callable<KernelBackend>, Callable<McpTransport>,
                     Callable<ApprovalPolicy>>
            make;
        Plugin plugin;
    };

    // For plugins that wrap others.
    std::unique_ptr<Sandbox> sandbox(std::string_view name, Host& host,
                                     const json::object& config) override {
        return make<Sandbox>(name, host, config);
    }
    std::unique_ptr<KernelBackend> kernel(std::string_view name, Host& host,
                                          const json::object& config) override {
        return make<KernelBackend>(name, host, config);
    }
    std::unique_ptr<McpTransport> transport(std::string_view name, Host& host,
                                            const json::object& config) override {
        return make<McpTransport>(name, host, config);
    }
    std::unique_ptr<ApprovalPolicy> approval(std::string_view name, Host& host,
                                             const json::object& config) override {
        return make<ApprovalPolicy>(name, host, config);
    }

    // Calls the factory, and lets nothing out of it but an object or an Error.
    template <class Interface>
    std::unique_ptr<Interface> made_by(const Entry& entry, const std::string& who, Host& host,
                                       const json::object& config) {
        const std::string where = who + " (" + entry.file.string() + "): ";
        thread_local int depth = 0;  // of factories that are running
        struct Nested {
            explicit Nested(int& running) : running_(++running) {}
            ~Nested() { --running_; }
            Nested(const Nested&) = delete;
            int& running_;
        };
        const Nested nested(depth);
        if (depth > 16)
            throw Error(errc::bad_config, where +
                                              "wraps plugins more than 16 deep; configure "
                                              "which one it wraps");
        host.plugins = this;
        std::unique_ptr<Interface> made;
        try {
            const auto own = own_plugin(entry.plugin);
            made = own ? std::get<Callable<Interface>>(own->make)(host, config)
                       : std::get<Factory<Interface>>(entry.plugin->make)(host, config);
        } catch (const Error& error) {
            if (error.code() == errc::bad_config) throw;  // it names the place in the configuration
            throw Error(error.code(), where + error.detail());
        } catch (const std::exception& error) {
            throw Error(errc::bad_plugin, where + "its factory failed: " + error.what() +
                                              "; correct the configuration or the plugin");
        } catch (...) {
            throw Error(errc::bad_plugin, where +
                                              "its factory threw what is no exception; "
                                              "correct the plugin");
        }
        if (!made)
            throw Error(errc::bad_plugin,
                        where +
                            "its factory returned null; correct the plugin, which must throw "
                            "Error instead");
        return made;
    }

    // Null for one that is no callable of the program's.
    std::shared_ptr<Own> own_plugin(const Plugin* plugin) const {
        const std::lock_guard lock(turn_);
        const auto own = own_.find(plugin);
        return own == own_.end() ? nullptr : own->second;
    }

    static void check_descriptor(const Plugin& plugin, const std::filesystem::path& holder) {
        const auto refuse = [&](const std::string& why) {
            throw Error(errc::bad_plugin, holder.string() + ": " + std::string(kind_of(plugin)) +
                                              " " + std::string(plugin.name) + ": " + why);
        };
        boost::system::error_code error;
        const auto schema = json::parse(plugin.config_schema, error);
        if (error) refuse("its config_schema is no JSON (" + error.message() + "); correct it");
        if (!schema.is_object()) refuse("its config_schema is no JSON object; correct it");
        if (const auto wrong = detail::malformed_keyword(schema.get_object()); !wrong.empty())
            refuse("its config_schema has a malformed \"" + wrong + "\"; correct it");
        if (!std::visit([](const auto make) { return make != nullptr; }, plugin.make))
            refuse("it has no factory; set .make");
    }

    template <class Interface>
    static constexpr std::string_view kind_name() {
        Plugin probe{.name = {}, .summary = {}, .config_schema = {}, .make = Factory<Interface>{}};
        return kind_of(probe);
    }

    static std::filesystem::path program() {
        return std::filesystem::path(boost::dll::program_location().string());
    }

    // What a file shows without being loaded.
    struct Shown {
        std::vector<std::string> names;     // symbols of descriptors of this API version
        std::vector<std::string> versions;  // all of the API that it has plugins for
    };

    static std::string why_none(const std::vector<std::string>& versions) {
        const std::string own = "ipybox API " IPYBOX_STRING(IPYBOX_API_VERSION);
        if (versions.empty())
            return "holds no plugin of " + own +
                   ", nor of another; it lacks the line IPYBOX_PLUGIN(name, descriptor)";
        std::string built;
        for (const auto& version : versions) built += (built.empty() ? "" : ", ") + version;
        return "holds no plugin of " + own + ": it was built for API " + built +
               "; rebuild it against the headers of this ipybox, " + detail::build_version;
    }

    static Shown examine(const std::filesystem::path& file) {
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
            boost::dll::library_info library("/proc/self/fd/" + std::to_string(handle.get()));
            Shown shown{library.symbols(IPYBOX_SECTION), {}};
            if (!shown.names.empty()) return shown;
            for (const std::string_view section : library.sections()) {
                constexpr std::string_view prefix = IPYBOX_SECTION_PREFIX;
                const auto version = section.substr(std::min(prefix.size(), section.size()));
                if (section.starts_with(prefix) && !version.empty() &&
                    version.find_first_not_of("0123456789") == version.npos)
                    shown.versions.emplace_back(version);
            }
            return shown;
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
            if (why.starts_with(file.string() + ": ")) why.erase(0, file.string().size() + 2);
            if (why.find("undefined symbol") != why.npos)
                why += why.find("6ipybox") != why.npos || why.find("5boost") != why.npos
                           ? "; link the program with -Wl,--export-dynamic and all of "
                             "ipybox_program_dep"
                           : "; link the plugin with what defines it";
            throw Error(errc::bad_plugin, file.string() + ": " + why);
        }
        for (const auto& name : names) add(*library.get<const Plugin*>(name), file);
    }

    // What was found stays where it is.
    const Entry& find(std::string_view kind, std::string_view name) {
        const std::lock_guard lock(turn_);
        const auto known = [&] {
            const auto found = plugins_.find(Key{kind, name});
            return found == plugins_.end() ? nullptr : &found->second;
        };
        if (const auto* entry = known()) return *entry;
        std::filesystem::path match;
        for (const auto& directory : directories_) {
            for (const auto& folder : {directory / kind, directory}) {
                const auto file = folder / (std::string(name) + ".so");
                std::error_code ignored;
                if (name.find('/') != name.npos || !std::filesystem::exists(file, ignored) ||
                    passed_over(directory, file))
                    continue;
                if (!match.empty()) refuse_duplicate(Key{kind, name}, match, file);
                match = file;
            }
        }
        if (!match.empty()) load_once(match);
        if (const auto* entry = known()) return *entry;
        std::string broken;
        list([&](const auto&, const std::string& message) { broken += "; " + message; });
        if (const auto* entry = known()) return *entry;
        std::string existing, searched;
        for (const auto& [key, entry] : plugins_)
            if (key.first == kind)
                existing += (existing.empty() ? "" : ", ") + std::string(key.second);
        for (const auto& directory : directories_)
            searched += (searched.empty() ? "" : ", ") + directory.string();
        throw Error(errc::no_such_plugin,
                    "no " + std::string(kind) + " plugin is named \"" + std::string(name) +
                        "\"; there are: " + (existing.empty() ? "none" : existing) +
                        "; searched: " + (searched.empty() ? "the program alone" : searched) +
                        "; --plugin-dir and IPYBOX_PLUGIN_PATH add directories" + broken);
    }

    // Whether a file of one of the two last places of standard() is none of ours.
    bool passed_over(const std::filesystem::path& directory,
                     const std::filesystem::path& file) const {
        std::error_code ignored;
        if (directory == installed_)
            return !beside_.empty() &&
                   std::filesystem::exists(beside_ / file.lexically_relative(installed_), ignored);
        if (directory != beside_ || file.parent_path() != beside_) return false;
        try {
            const auto shown = examine(file);
            return shown.names.empty() && shown.versions.empty();
        } catch (const Error&) {
            return true;
        }
    }

    std::vector<std::filesystem::path> files() const {
        std::vector<std::filesystem::path> found;
        for (const auto& directory : directories_) {
            std::error_code ignored;
            for (std::filesystem::recursive_directory_iterator at(directory, ignored), end;
                 at != end; at.increment(ignored)) {
                if (at.depth() > 0 && at->is_directory(ignored)) at.disable_recursion_pending();
                if (at->path().extension() == ".so" && !passed_over(directory, at->path()))
                    found.push_back(at->path());
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
    std::map<const Plugin*, std::shared_ptr<Own>> own_;
    std::vector<std::filesystem::path> directories_;
    std::vector<std::filesystem::path> loaded_;
    // Of directories_, the two that hide and are hidden; empty when they are not searched.
    std::filesystem::path beside_;
    std::filesystem::path installed_;
    // Not held while a factory runs. Again by its holder: what is searched is loaded and added.
    mutable Turn turn_;
};

}  // namespace ipybox
