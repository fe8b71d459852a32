#pragma once
// What code in a workspace can import, by its files: the generated packages below mcptools/, which
// list their tools in their docstrings, and saved code actions below gentools/. All of it is text
// that the code can write as it likes.
#include <fcntl.h>

#include <algorithm>
#include <filesystem>
#include <ipybox/detail/beneath.hpp>
#include <ipybox/detail/python_source.hpp>
#include <ipybox/detail/terminal_text.hpp>
#include <ipybox/detail/workspace_files.hpp>
#include <ipybox/tools/apigen.hpp>
#include <ipybox/tools/detail/package_root.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ipybox {

// A module that code can import.
struct ImportableTool {
    std::string package;  // "mcptools.files", "gentools.reports"
    std::string module;   // "read_text_file", "longest.api"
    std::string summary;  // one line; may be empty
    // Whether all three are the same.
    bool operator==(const ImportableTool&) const = default;
};

namespace tools {

class ImportableTools {
public:
    explicit ImportableTools(const std::filesystem::path& workspace)
        : root_(detail::open_real_directory(workspace)) {
        for (const auto& server : names("mcptools")) add_server(server);
        for (const auto& category : names("gentools")) add_category(category);
    }
    std::vector<ImportableTool> take() { return std::move(found_); }
    std::vector<std::string> take_of_original() { return std::move(of_original_); }

private:
    static constexpr std::size_t max_found = 5000, max_names = 2000, max_file = 1u << 20;

    std::vector<std::string> names(const std::filesystem::path& directory) const {
        const auto handle =
            detail::open_beneath(root_.get(), directory.string(), O_RDONLY | O_DIRECTORY);
        if (!handle) return {};
        auto all = detail::PackageRoot::entries(handle.get());
        std::erase_if(all, [](const auto& name) {
            return !detail::is_python_identifier(name) || name.starts_with("__");
        });
        std::sort(all.begin(), all.end());
        if (all.size() > max_names) all.resize(max_names);
        return all;
    }
    std::optional<std::string> read(const std::filesystem::path& path) {
        if (found_.size() >= max_found || unread_ == 0) return std::nullopt;
        try {
            auto part = detail::read_beneath(root_.get(), path, 0, std::min(max_file, unread_));
            unread_ -= part.bytes.size();
            return std::move(part.bytes);
        } catch (const Error&) {
            return std::nullopt;  // not there, or not meant to be read
        }
    }
    static std::string_view first_line(std::string_view text) {
        return text.substr(0, text.find('\n'));
    }
    static std::string_view docstring(std::string_view source) {
        for (const std::string_view quotes : {R"(""")", "'''"}) {
            const auto from = source.find(quotes);
            if (from == source.npos || from > 500) continue;
            source.remove_prefix(from + 3);
            return source.substr(0, source.find(quotes));
        }
        return {};
    }
    void add(std::string package, std::string module, std::string_view summary) {
        while (summary.starts_with(' ')) summary.remove_prefix(1);
        found_.push_back(
            {std::move(package), std::move(module), detail::printable(summary.substr(0, 300))});
    }
    void add_server(const std::string& server) {
        const auto source = read(std::filesystem::path("mcptools") / server / "__init__.py");
        if (!source) return;
        if (is_of_original(*source)) of_original_.push_back(server);
        auto rest = docstring(*source);
        for (bool title = true; !rest.empty() && found_.size() < max_found; title = false) {
            const auto line = first_line(rest);
            rest.remove_prefix(std::min(line.size() + 1, rest.size()));
            const auto colon = line.find(':');
            if (title || colon == line.npos || !detail::is_python_identifier(line.substr(0, colon)))
                continue;
            add("mcptools." + server, std::string(line.substr(0, colon)), line.substr(colon + 1));
        }
    }
    void add_category(const std::string& category) {
        const auto directory = std::filesystem::path("gentools") / category;
        for (const auto& name : names(directory)) {
            const auto source = read(directory / name / "api.py");
            if (!source) continue;
            auto text = docstring(*source);
            while (text.starts_with('\n') || text.starts_with(' ')) text.remove_prefix(1);
            add("gentools." + category + "." + name, "api", first_line(text));
        }
    }

    UniqueFd root_;
    std::vector<ImportableTool> found_;
    std::vector<std::string> of_original_;
    std::size_t unread_ = 4u << 20;
};

}  // namespace tools

// Everything that is there, by name; bounded in number and in what is read. Throws Error: io_error
// (the workspace cannot be opened).
inline std::vector<ImportableTool> importable_tools(const std::filesystem::path& workspace) {
    return tools::ImportableTools(workspace).take();
}

// The packages below mcptools/ that the original ipybox generated, which need its modules and its
// tool server; by name, bounded in the same way. Throws Error: io_error (the workspace cannot be
// opened).
inline std::vector<std::string> packages_of_original(const std::filesystem::path& workspace) {
    return tools::ImportableTools(workspace).take_of_original();
}

}  // namespace ipybox
