#pragma once
// What is said of the tools that code can call: answers to searches, descriptions, lists with
// types. Kernels ask for it through the ToolServer, models through `ipybox serve`; both get the
// same texts.
#include <algorithm>
#include <boost/json/array.hpp>
#include <cstddef>
#include <functional>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/nearest.hpp>
#include <ipybox/error.hpp>
#include <ipybox/tools/detail/tool_index.hpp>
#include <ipybox/tools/detail/tool_text.hpp>
#include <ipybox/tools/tool_search.hpp>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::tools {

// Of one session. Texts are made when they are asked for, each once as far as room allows: what a
// server writes costs its time once, however often code asks. Used by one thread.
class ToolCatalogue {
public:
    struct Server {
        std::string name;
        const boost::json::array* tools;  // nullptr: it was not started, and so not asked
    };
    // Which tools a search may find: those that code can call now, or also those of packages in the
    // workspace whose server is not registered.
    enum class Scope { callable, all };

    static constexpr std::size_t max_answer = 60'000;  // bytes
    static constexpr std::size_t max_found = 50;       // tools in an answer to a search

    // servers: those that are registered; their tools must outlive the catalogue. files: what the
    // workspace has, see importable_tools(). coroutines: the generated run() is one.
    ToolCatalogue(const std::vector<Server>& servers, std::vector<ImportableTool> files,
                  bool coroutines)
        : files_(std::move(files)), coroutines_(coroutines) {
        for (const auto& server : servers) {
            counts_.try_emplace(server.name, 0);
            if (server.tools)
                add_listed(server);
            else
                not_started_.insert(server.name);
        }
        add_files();
        std::vector<detail::SearchedTool> searched;
        for (const auto& entry : entries_) {
            if (entry.tool) {
                searched.push_back({entry.server, detail::string_of(*entry.tool, "name"),
                                    text_of(*entry.tool),
                                    detail::object_of(*entry.tool, "inputSchema")});
            } else {
                searched.push_back({entry.server, entry.module, entry.summary});
            }
        }
        index_ = detail::ToolIndex(searched);
    }
    ToolCatalogue(const ToolCatalogue&) = delete;
    ToolCatalogue& operator=(const ToolCatalogue&) = delete;

    // The files that it was made of.
    const std::vector<ImportableTool>& files() const noexcept { return files_; }

    // A line for each tool that fits, the best first: server.tool(required, optional?) – sentence.
    // query: one wording a line. limit: 1 to max_found.
    std::string search(std::string_view query, std::size_t limit, Scope scope = Scope::callable) {
        limit = std::clamp<std::size_t>(limit, 1, max_found);
        const auto found = index_.search(query, limit, [&](std::size_t i) {
            return scope == Scope::all || entries_[i].state != State::unregistered;
        });
        std::string text;
        for (const auto i : found) text += line_of(entries_[i]) + '\n';
        if (found.empty()) text = "Nothing fits; try other words. " + known_servers() + '\n';
        return text + note_on_others();
    }

    // How tools are called, with an empty line between. names: one a line, at most 10 count;
    // "server.tool", as code imports it ("mcptools.server.tool") or as the server names it; the
    // server may be left out where one has it. Throws Error: bad_argument (there is none; names the
    // nearest).
    std::string describe(std::string_view names) {
        std::string text;
        for (int i = 0; i < 10; ++i) {
            const auto end = std::min(names.find('\n'), names.size());
            text += (i > 0 ? "\n" : "") + describe_one(names.substr(0, end));
            names.remove_prefix(std::min(end + 1, names.size()));
            if (names.empty()) break;
        }
        return text;
    }
    // All tools of a server, a line each with the types of the parameters. Throws Error:
    // bad_argument (no such server; names those that there are).
    std::string stubs(std::string_view server) {
        if (server.starts_with(generated)) server.remove_prefix(generated.size());
        std::string text = "from mcptools." + std::string(server) + " import TOOL  # then " +
                           (coroutines_ ? "await " : "") + "TOOL.run(parameter=value)\n";
        std::size_t left_out = 0, listed = 0;
        for (auto& entry : entries_) {
            if (entry.server != server) continue;
            ++listed;
            if (text.size() < max_answer)
                text += stub_of(entry) + '\n';
            else
                ++left_out;
        }
        if (listed == 0)
            throw Error(
                errc::bad_argument,
                not_started_.count(server)
                    ? "MCP server " + std::string(server) +
                          " was not started yet; call one of its tools first"
                    : "there is no MCP server \"" + shown(server) + "\". " + known_servers());
        if (left_out > 0)
            text += "[" + std::to_string(left_out) + " more; search for what you need]\n";
        return text;
    }

private:
    static constexpr std::string_view generated = "mcptools.", saved = "gentools.";
    enum class State { listed, not_started, unregistered, file };

    struct Entry {
        std::string server;  // of saved code: "gentools"
        std::string module;  // of saved code: "reports.longest"
        State state;
        const boost::json::object* tool = nullptr;
        std::string_view summary{};  // of what is known by files
        std::string line{}, stub{};  // once they were asked for
    };

    static std::string_view text_of(const boost::json::object& tool) {
        const auto description = detail::string_of(tool, "description");
        return description.empty() ? detail::string_of(tool, "title") : description;
    }
    static std::string shown(std::string_view name) { return detail::one_line(name, 80); }

    // The modules that generate_package() makes.
    void add_listed(const Server& server) {
        std::map<std::string, const boost::json::object*> by_name;
        std::set<std::string> names;
        for (const auto& value : *server.tools) {
            const auto* tool = value.if_object();
            const std::string name(tool ? detail::string_of(*tool, "name") : "");
            if (name.empty() || name.size() > 1000) continue;
            const auto [known, fresh] = by_name.try_emplace(name, tool);
            if (!fresh && detail::write_json(*tool) < detail::write_json(*known->second))
                known->second = tool;
            names.insert(name);
        }
        const auto modules = detail::module_names(names);
        for (const auto& [name, tool] : by_name)
            entries_.push_back({server.name, modules.at(name), State::listed, tool});
        counts_[server.name] = by_name.size();
    }

    void add_files() {
        for (const auto& file : files_) {
            std::string_view package = file.package;
            if (package.starts_with(saved)) {
                entries_.push_back({"gentools", std::string(package.substr(saved.size())),
                                    State::file, nullptr, file.summary});
            } else if (package.starts_with(generated)) {
                package.remove_prefix(generated.size());
                const bool known = counts_.count(package) != 0;
                if (known && !not_started_.count(package)) continue;
                entries_.push_back({std::string(package), file.module,
                                    known ? State::not_started : State::unregistered, nullptr,
                                    file.summary});
            }
        }
    }

    static std::string_view mark_of(State state) {
        return state == State::not_started    ? " [its server was not started yet]"
               : state == State::unregistered ? " [its server is not registered]"
                                              : "";
    }
    static std::string plain_line(const Entry& entry) {
        std::string line = entry.server + '.' + entry.module;
        if (!entry.summary.empty()) line += " – " + detail::one_line(entry.summary, 110);
        return line.append(mark_of(entry.state));
    }
    static const std::string& line_of(Entry& entry) {
        if (entry.line.empty())
            entry.line =
                entry.tool ? detail::ToolText(entry.server, entry.module, *entry.tool).search_line()
                           : plain_line(entry);
        return entry.line;
    }
    static const std::string& stub_of(Entry& entry) {
        if (!entry.stub.empty()) return entry.stub;
        if (entry.tool)
            entry.stub = detail::ToolText(entry.server, entry.module, *entry.tool).stub_line();
        else
            entry.stub = entry.module + "(…)" +
                         (entry.summary.empty() ? "" : "  # " + std::string(entry.summary)) +
                         std::string(mark_of(entry.state));
        return entry.stub;
    }

    std::string describe_one(std::string_view name) {
        const auto at = find(name);
        const auto& entry = entries_[at];
        if (!entry.tool) return described_file(entry);
        if (const auto known = descriptions_.find(at); known != descriptions_.end())
            return known->second;
        auto text =
            detail::ToolText(entry.server, entry.module, *entry.tool).description(coroutines_);
        static constexpr std::size_t max_kept = 4u << 20;
        if (kept_ > max_kept) descriptions_.clear(), kept_ = 0;
        kept_ += text.size();
        return descriptions_.emplace(at, std::move(text)).first->second;
    }

    std::string described_file(const Entry& entry) const {
        const std::string summary =
            entry.summary.empty() ? "" : detail::one_line(entry.summary, 300) + '\n';
        if (entry.state == State::file) {
            std::string path = entry.module;
            std::replace(path.begin(), path.end(), '.', '/');
            return "from gentools." + entry.module + " import api  # then api.run(…)\n" + summary +
                   "gentools/" + path + "/api.py says its parameters\n";
        }
        return std::string(generated) + entry.server + '.' + entry.module + ".run(…)\n" + summary +
               (entry.state == State::not_started
                    ? "Its server was not started yet; "
                    : "Its server is not registered: register it first; ") +
               "mcptools/" + entry.server + '/' + entry.module + ".py says its parameters\n";
    }

    std::string known_servers() const {
        std::string names;
        for (const auto& [name, tools] : counts_) {
            if (names.size() > 1000) {
                names += ", …";
                break;
            }
            names += (names.empty() ? "" : ", ") + name +
                     (not_started_.count(name) ? "" : " (" + std::to_string(tools) + " tools)");
        }
        return names.empty() ? "No MCP server is registered." : "MCP servers: " + names + ".";
    }
    // Those of which nothing can be found.
    std::string note_on_others() const {
        std::set<std::string_view> silent(not_started_.begin(), not_started_.end());
        for (const auto& entry : entries_) silent.erase(entry.server);
        std::string names;
        for (const auto name : silent) {
            if (names.size() > 1000) {
                names += ", …";
                break;
            }
            names += (names.empty() ? "" : ", ") + std::string(name);
        }
        return names.empty() ? names
                             : "[not searched, since they were not started yet: " + names + "]\n";
    }

    // ---- names ----

    static std::string_view without_call(std::string_view name) {
        const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; };
        name = name.substr(0, name.find('('));
        while (!name.empty() && blank(name.back())) name.remove_suffix(1);
        while (!name.empty() && blank(name.front())) name.remove_prefix(1);
        return name;
    }
    bool is_named(const Entry& entry, std::string_view name) const {
        return entry.module == name ||
               (entry.tool && detail::string_of(*entry.tool, "name") == name);
    }
    // Entries by "server.tool" or "tool"; several when it is not clear.
    std::vector<std::size_t> named(std::string_view name) const {
        std::vector<std::size_t> exact, alone;
        for (std::size_t i = 0; i < entries_.size(); ++i) {
            const auto& entry = entries_[i];
            if (is_named(entry, name)) alone.push_back(i);
            if (name.size() > entry.server.size() && name.starts_with(entry.server) &&
                name[entry.server.size()] == '.' &&
                is_named(entry, name.substr(entry.server.size() + 1)))
                exact.push_back(i);
        }
        if (exact.size() > 1) exact.resize(1);  // one as a module, another on the wire
        return exact.empty() ? alone : exact;
    }

    std::size_t find(std::string_view asked) const {
        const auto whole = without_call(asked.substr(0, 2000));
        std::vector<std::string_view> forms{whole};
        auto short_form = whole;
        if (short_form.starts_with(generated)) short_form.remove_prefix(generated.size());
        for (const std::string_view end : {".run", ".run_async", ".api"})
            if (short_form.ends_with(end)) short_form.remove_suffix(end.size());
        if (short_form != whole) forms.push_back(short_form);
        std::vector<std::size_t> candidates;
        for (const auto form : forms) {
            candidates = named(form);
            if (candidates.size() == 1) return candidates.front();
            if (!candidates.empty()) break;
        }
        const bool several = !candidates.empty();
        if (!several) candidates = nearest(short_form);
        std::string names;
        for (std::size_t i = 0; i < candidates.size() && i < 5; ++i) {
            const auto& entry = entries_[candidates[i]];
            names += (i > 0 ? ", " : "") + entry.server + '.' + entry.module;
        }
        const auto what = "\"" + shown(whole) + "\"";
        throw Error(errc::bad_argument,
                    several         ? "several servers have a tool " + what + ": " + names
                    : names.empty() ? "there is no tool " + what + ". " + known_servers()
                                    : "there is no tool " + what + "; nearest: " + names);
    }

    // Those with the most similar names, then those that a search for its words finds.
    std::vector<std::size_t> nearest(std::string_view name) const {
        static constexpr std::size_t most = 3, max_compared = 5000;
        const auto dot = name.find('.');
        const auto own = dot == name.npos ? name : name.substr(dot + 1);
        std::vector<std::pair<std::size_t, std::size_t>> near;
        for (std::size_t i = 0; i < entries_.size() && i < max_compared; ++i) {
            const auto& entry = entries_[i];
            const bool other = dot != name.npos && name.substr(0, dot) != entry.server;
            if (const auto away = detail::near_by(own, entry.module))
                near.emplace_back(2 * *away + (other ? 1 : 0), i);
        }
        std::sort(near.begin(), near.end());
        std::vector<std::size_t> found;
        for (const auto& [away, i] : near)
            if (found.size() < most) found.push_back(i);
        for (const auto i : index_.search(name, most))
            if (found.size() < most && std::find(found.begin(), found.end(), i) == found.end())
                found.push_back(i);
        return found;
    }

    std::vector<ImportableTool> files_;
    bool coroutines_;
    std::map<std::string, std::size_t, std::less<>> counts_;  // tools of registered servers
    std::set<std::string, std::less<>> not_started_;
    std::vector<Entry> entries_;
    detail::ToolIndex index_;
    std::map<std::size_t, std::string> descriptions_;
    std::size_t kept_ = 0;  // bytes of them
};

}  // namespace ipybox::tools
