#pragma once
// What is said to and by the language server of a type checker, without I/O. The cell that it reads
// is hostile, and may have become its master: what it says has limits and is believed nothing.
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_memory.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/error.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::detail {

// A message as it goes over standard input.
inline std::string lsp_frame(const json::object& message) {
    const auto text = write_json(message);
    return "Content-Length: " + std::to_string(text.size()) + "\r\n\r\n" + text;
}

// Cuts messages out of what a language server prints.
class LspReader {
public:
    static constexpr std::size_t max_header = 4096, max_message = 1u << 20;
    static constexpr std::size_t max_decoded = 32u << 20;

    void add(std::string_view bytes) { text_ += bytes; }

    // The next message, once it is there. Throws Error: io_error (what came is none, or too long).
    std::optional<json::object> next() {
        constexpr std::string_view blank = "\r\n\r\n", field = "Content-Length: ";
        const auto end = text_.find(blank);
        if (end == text_.npos && text_.size() <= max_header) return std::nullopt;
        if (end > max_header) refuse();
        const auto header = std::string_view(text_).substr(0, end);
        const auto at = header.find(field);
        std::size_t size = 0;
        if (at == header.npos) refuse();
        const auto* number = header.data() + at + field.size();
        const auto parsed = std::from_chars(number, header.data() + header.size(), size);
        if (parsed.ec != std::errc() || size > max_message) refuse();
        const auto start = end + blank.size();
        if (text_.size() - start < size) return std::nullopt;
        boost::system::error_code error;
        auto value =
            parse_within(std::string_view(text_).substr(start, size), 32, max_decoded, error);
        if (error || !value.is_object()) refuse();
        text_.erase(0, start + size);
        return std::move(value.get_object());
    }

private:
    [[noreturn]] static void refuse() {
        throw Error(errc::io_error, "it printed what no language server may");
    }
    std::string text_;
};

// Zero-based; bytes of UTF-8 in the line.
struct TextPlace {
    std::size_t line = 0, column = 0;
};

// What a type checker found wrong.
struct TypeFault {
    std::string code, message;
    TextPlace begin, end;
    std::string declared_in;  // the URI of the file where what is used wrongly is declared
};

inline std::size_t lsp_number(const json::object& object, std::string_view name) {
    const auto* value = object.if_contains(name);
    const auto number = value && value->is_int64() ? value->get_int64() : 0;
    return number < 0 ? 0 : static_cast<std::size_t>(number);
}

inline TextPlace lsp_place(const json::object* range, std::string_view side) {
    const auto* place = range ? object_of(*range, side) : nullptr;
    if (!place) return {};
    return {lsp_number(*place, "line"), lsp_number(*place, "character")};
}

// Of the answer to textDocument/diagnostic, the first `limit` faults.
inline std::vector<TypeFault> type_faults(const json::object& answer, std::size_t limit) {
    std::vector<TypeFault> faults;
    const auto* result = object_of(answer, "result");
    const auto* items = result ? result->if_contains("items") : nullptr;
    if (!items || !items->is_array()) throw Error(errc::io_error, "it did not say what is wrong");
    for (const auto& item : items->get_array()) {
        const auto* one = item.if_object();
        if (!one || faults.size() == limit) continue;
        const auto* range = object_of(*one, "range");
        TypeFault fault{std::string(string_of(*one, "code")),
                        std::string(string_of(*one, "message")),
                        lsp_place(range, "start"),
                        lsp_place(range, "end"),
                        {}};
        if (const auto* related = one->if_contains("relatedInformation");
            related && related->is_array() && !related->get_array().empty()) {
            const auto* first = related->get_array()[0].if_object();
            if (const auto* location = first ? object_of(*first, "location") : nullptr)
                fault.declared_in = string_of(*location, "uri");
        }
        faults.push_back(std::move(fault));
    }
    return faults;
}

// Of the answer to textDocument/typeDefinition, the file of the first place; empty without one.
inline std::string first_location(const json::object& answer) {
    const auto* result = answer.if_contains("result");
    const auto* places = result ? result->if_array() : nullptr;
    const auto* place = result ? result->if_object() : nullptr;
    if (places && !places->empty()) place = (*places)[0].if_object();
    if (!place) return {};
    const auto uri = string_of(*place, "uri");
    return std::string(uri.empty() ? string_of(*place, "targetUri") : uri);
}

inline json::object lsp_position(const std::string& document, const TextPlace& place) {
    return {{"textDocument", {{"uri", document}}},
            {"position", {{"line", place.line}, {"character", place.column}}}};
}

// How ty is asked to work: on the directory `root`, with the packages in `stubs` and none that are
// installed. Only what is looked for is switched on.
inline json::object lsp_start(const std::string& root, const std::string& stubs,
                              std::string_view python_version) {
    json::object rules{{"all", "ignore"}};
    for (const auto* rule : {"no-matching-overload", "invalid-argument-type", "missing-argument",
                             "unknown-argument", "too-many-positional-arguments",
                             "missing-attribute", "missing-module-member", "import-not-found"})
        rules.emplace(rule, "error");
    const auto uri = "file://" + root;
    json::object environment{{"extra-paths", json::array{stubs}}};
    if (!python_version.empty()) environment["python-version"] = python_version;
    return {{"processId", nullptr},
            {"rootUri", uri},
            {"workspaceFolders", json::array{json::object{{"uri", uri}, {"name", "cells"}}}},
            {"capabilities",
             {{"general", {{"positionEncodings", json::array{"utf-8"}}}},
              {"textDocument",
               {{"diagnostic", {{"relatedInformation", true}, {"dynamicRegistration", false}}},
                {"publishDiagnostics", {{"relatedInformation", true}}}}},
              {"notebookDocument", {{"synchronization", json::object()}}}}},
            {"initializationOptions",
             {{"logLevel", "error"},
              {"configuration",
               {{"environment", std::move(environment)}, {"rules", std::move(rules)}}}}}};
}

// A notebook of these cells, whose URIs are NOTEBOOK#c0, #c1 …
inline json::object lsp_notebook(const std::string& notebook, const std::string& cell_uri,
                                 const std::vector<std::string>& cells) {
    json::array list, texts;
    for (std::size_t i = 0; i < cells.size(); ++i) {
        const auto uri = cell_uri + "#c" + std::to_string(i);
        list.push_back(json::object{{"kind", 2}, {"document", uri}});
        texts.push_back(json::object{
            {"uri", uri}, {"languageId", "python"}, {"version", 1}, {"text", cells[i]}});
    }
    return {{"notebookDocument",
             {{"uri", notebook},
              {"notebookType", "jupyter-notebook"},
              {"version", 1},
              {"cells", std::move(list)}}},
            {"cellTextDocuments", std::move(texts)}};
}

inline json::object lsp_closed(const std::string& notebook, const std::string& cell_uri,
                               std::size_t cells) {
    json::array texts;
    for (std::size_t i = 0; i < cells; ++i)
        texts.push_back(json::object{{"uri", cell_uri + "#c" + std::to_string(i)}});
    return {{"notebookDocument", {{"uri", notebook}}}, {"cellTextDocuments", std::move(texts)}};
}

}  // namespace ipybox::detail
