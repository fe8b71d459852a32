#pragma once
// What MCP puts around its messages, without I/O: protocol versions, names in `_meta`, log levels,
// URI templates.
#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/mcp_versions.hpp>
#include <ipybox/error.hpp>
#include <ipybox/mcp/jsonrpc.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::detail {

inline constexpr std::string_view meta_version = "io.modelcontextprotocol/protocolVersion";
inline constexpr std::string_view meta_capabilities = "io.modelcontextprotocol/clientCapabilities";
inline constexpr std::string_view meta_client_info = "io.modelcontextprotocol/clientInfo";
inline constexpr std::string_view meta_server_info = "io.modelcontextprotocol/serverInfo";
inline constexpr std::string_view meta_log_level = "io.modelcontextprotocol/logLevel";
inline constexpr std::string_view meta_subscription = "io.modelcontextprotocol/subscriptionId";
inline constexpr std::string_view extension_tasks = "io.modelcontextprotocol/tasks";

// Bytes of a server's words in an error or a log line.
inline constexpr std::size_t max_server_text = 4096;

// RFC 5424's severities as MCP spells them, least severe first.
inline constexpr std::array<std::string_view, 8> mcp_log_levels = {
    "debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"};
inline std::optional<int> log_severity(std::string_view level) noexcept {
    const auto found = std::find(mcp_log_levels.begin(), mcp_log_levels.end(), level);
    if (found == mcp_log_levels.end()) return std::nullopt;
    return static_cast<int>(found - mcp_log_levels.begin());
}

// A resource template (RFC 6570, levels 1 and 2 without fragments): "{name}" stands for one or
// more characters but '/', '?' and '#', "{+name}" for any.
class UriTemplate {
public:
    // Throws Error: bad_argument (it is not such a template).
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
