#pragma once
// What MCP puts around its messages, without I/O: protocol versions, log levels, header values,
// parameters mirrored into headers (2026-07-28 "Streamable HTTP"), URI templates.
#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <ipybox/detail/base64.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/error.hpp>
#include <ipybox/mcp/jsonrpc.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::detail {

inline constexpr std::string_view mcp_modern_version = "2026-07-28";
// Newest first.
inline constexpr std::array<std::string_view, 4> mcp_legacy_versions = {"2025-11-25", "2025-06-18",
                                                                        "2025-03-26", "2024-11-05"};
inline bool is_legacy_version(std::string_view revision) noexcept {
    return std::find(mcp_legacy_versions.begin(), mcp_legacy_versions.end(), revision) !=
           mcp_legacy_versions.end();
}
// A date later than the last legacy revision: whoever says it expects modern answers.
inline bool names_modern_version(std::string_view revision) noexcept {
    return revision.size() == 10 && revision[4] == '-' && revision > mcp_legacy_versions.front();
}

inline constexpr std::string_view meta_version = "io.modelcontextprotocol/protocolVersion";
inline constexpr std::string_view meta_capabilities = "io.modelcontextprotocol/clientCapabilities";
inline constexpr std::string_view meta_client_info = "io.modelcontextprotocol/clientInfo";
inline constexpr std::string_view meta_server_info = "io.modelcontextprotocol/serverInfo";
inline constexpr std::string_view meta_log_level = "io.modelcontextprotocol/logLevel";
inline constexpr std::string_view meta_subscription = "io.modelcontextprotocol/subscriptionId";

// RFC 5424's severities as MCP spells them, least severe first.
inline constexpr std::array<std::string_view, 8> mcp_log_levels = {
    "debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"};
inline std::optional<int> log_severity(std::string_view level) noexcept {
    const auto found = std::find(mcp_log_levels.begin(), mcp_log_levels.end(), level);
    if (found == mcp_log_levels.end()) return std::nullopt;
    return static_cast<int>(found - mcp_log_levels.begin());
}

inline const json::object* object_of(const json::object& object, std::string_view key) noexcept {
    const auto* value = object.if_contains(key);
    return value != nullptr ? value->if_object() : nullptr;
}

// The text that a header stands for: "=?base64?…?=" decoded, anything else as it is. nullopt when
// it is malformed or holds what a header must not.
inline std::optional<std::string> decode_header_value(std::string_view value) {
    constexpr std::string_view before = "=?base64?", after = "?=";
    for (const char c : value)
        if (c != '\t' && (c < 0x20 || c > 0x7e)) return std::nullopt;
    if (value.size() < before.size() + after.size() || !value.starts_with(before) ||
        !value.ends_with(after))
        return std::string(value);
    value.remove_prefix(before.size());
    value.remove_suffix(after.size());
    for (const char c : value)
        if (c == ' ' || c == '\t') return std::nullopt;
    return decode_base64(value);
}

// A tool's parameter that comes a second time as header Mcp-Param-<name>.
struct MirroredParameter {
    std::string name;
    std::vector<std::string> path;  // of keys in the arguments
    bool number = false;
};

inline bool is_header_token(std::string_view text) noexcept {
    constexpr std::string_view marks = "!#$%&'*+-.^_`|~";
    return !text.empty() && std::all_of(text.begin(), text.end(), [marks](char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
               marks.find(c) != marks.npos;
    });
}

inline bool same_without_case(std::string_view a, std::string_view b) noexcept {
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
    return a.size() == b.size() &&
           std::equal(a.begin(), a.end(), b.begin(),
                      [lower](char x, char y) { return lower(x) == lower(y); });
}

// Collects the x-mcp-header annotations of a tool's input schema. Throws errc::bad_argument for
// one that the protocol forbids: clients would drop the whole tool.
inline void find_mirrored(const json::object& schema, std::vector<std::string>& path,
                          std::vector<MirroredParameter>& found) {
    const auto* properties = object_of(schema, "properties");
    if (properties == nullptr || path.size() > 32) return;
    for (const auto& entry : *properties) {
        const auto* property = entry.value().if_object();
        if (property == nullptr) continue;
        path.emplace_back(entry.key());
        if (const auto* annotation = property->if_contains("x-mcp-header")) {
            const auto fault = [&entry](std::string_view why) {
                return Error(errc::bad_argument, "the x-mcp-header of parameter \"" +
                                                     std::string(entry.key()) + "\" " +
                                                     std::string(why));
            };
            if (!annotation->is_string() || !is_header_token(annotation->get_string()))
                throw fault("is no name for a header");
            const auto type = string_of(*property, "type");
            if (type != "string" && type != "integer" && type != "boolean")
                throw fault("needs a parameter of type string, integer or boolean");
            const std::string_view name = annotation->get_string();
            for (const auto& other : found)
                if (same_without_case(other.name, name)) throw fault("is used twice");
            found.push_back({std::string(name), path, type == "integer"});
        }
        find_mirrored(*property, path, found);
        path.pop_back();
    }
}
inline std::vector<MirroredParameter> mirrored_parameters(const json::object& schema) {
    std::vector<std::string> path;
    std::vector<MirroredParameter> found;
    find_mirrored(schema, path, found);
    return found;
}

// Whether a header says what the argument does. header: null when it was not sent.
inline bool mirrors(const MirroredParameter& parameter, const json::object& arguments,
                    const std::string_view* header) {
    const json::object* level = &arguments;
    const json::value* value = nullptr;
    for (std::size_t i = 0; i < parameter.path.size(); ++i) {
        value = level->if_contains(parameter.path[i]);
        if (value == nullptr) break;
        if (i + 1 == parameter.path.size()) break;
        level = value->if_object();
        if (level == nullptr) {
            value = nullptr;
            break;
        }
    }
    if (value == nullptr || value->is_null()) return header == nullptr;
    if (header == nullptr) return false;
    const auto text = decode_header_value(*header);
    if (!text) return false;
    if (is_number(*value)) {
        if (is_number_text(*text)) return compare_numbers(exact_value(*text), *value) == 0;
        return false;
    }
    if (const auto* string = value->if_string()) return *text == std::string_view(*string);
    if (const auto* flag = value->if_bool()) return *text == (*flag ? "true" : "false");
    return true;  // no such value fits the schema: that is said later
}

// A resource template (RFC 6570, levels 1 and 2 without fragments): "{name}" stands for one or
// more characters but '/', '?' and '#', "{+name}" for any.
class UriTemplate {
public:
    // Throws errc::bad_argument for what is not such a template.
    explicit UriTemplate(std::string_view text) {
        const auto fault = [text](std::string_view why) {
            return Error(errc::bad_argument,
                         "the URI template \"" + std::string(text) + "\" " + std::string(why));
        };
        std::string_view rest = text;
        for (;;) {
            const auto open = rest.find('{');
            literals_.emplace_back(rest.substr(0, open));
            if (literals_.back().find('}') != std::string::npos) throw fault("has a stray brace");
            if (open == rest.npos) break;
            const auto close = rest.find('}', open);
            if (close == rest.npos) throw fault("has an open brace");
            auto name = rest.substr(open + 1, close - open - 1);
            const bool any = name.starts_with('+');
            if (any) name.remove_prefix(1);
            if (name.empty() || name.find_first_of("{?#/&;.*,:=") != name.npos)
                throw fault("uses an expression other than {name} and {+name}");
            if (!variables_.empty() && literals_.back().empty())
                throw fault("has two variables with nothing between them");
            variables_.push_back({std::string(name), any});
            rest = rest.substr(close + 1);
        }
    }

    // The variables' values, percent-decoded; nullopt when `uri` is none of the template's.
    std::optional<json::object> match(std::string_view uri) const {
        if (uri.size() > 64 * 1024 || !uri.starts_with(literals_.front())) return std::nullopt;
        uri.remove_prefix(literals_.front().size());
        json::object values;
        for (std::size_t i = 0; i < variables_.size(); ++i) {
            const std::string& after = literals_[i + 1];
            const bool last = i + 1 == variables_.size();
            std::size_t size = uri.npos;
            if (last) {
                if (uri.size() > after.size() && uri.ends_with(after))
                    size = uri.size() - after.size();
            } else {
                size = uri.find(after, 1);
            }
            if (size == uri.npos || size == 0) return std::nullopt;
            const auto value = uri.substr(0, size);
            if (!variables_[i].any && value.find_first_of("/?#") != value.npos) return std::nullopt;
            values[variables_[i].name] = decode(value);
            uri.remove_prefix(size + after.size());
        }
        if (!uri.empty()) return std::nullopt;
        return values;
    }

private:
    static std::string decode(std::string_view text) {
        const auto digit = [](char c) {
            if (c >= '0' && c <= '9') return c - '0';
            if (c >= 'a' && c <= 'f') return c - 'a' + 10;
            return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        };
        std::string plain;
        for (std::size_t i = 0; i < text.size(); ++i) {
            if (text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 &&
                digit(text[i + 2]) >= 0) {
                plain += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
                i += 2;
            } else {
                plain += text[i];
            }
        }
        return plain;
    }

    struct Variable {
        std::string name;
        bool any;
    };
    std::vector<std::string> literals_;  // one more than variables
    std::vector<Variable> variables_;
};

}  // namespace ipybox::detail
