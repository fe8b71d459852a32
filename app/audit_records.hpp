#pragma once
// The records of an audit log, as the commands read them.
#include <cstdio>
#include <fstream>
#include <ipybox/approval/rules.hpp>
#include <ipybox/detail/json_memory.hpp>
#include <ipybox/detail/json_number.hpp>
#include <ipybox/error.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace ipybox::app {

// The text of a member, or its JSON; empty without it.
inline std::string field(const json::object& record, std::string_view key) {
    const auto* value = record.if_contains(key);
    if (!value) return {};
    if (detail::is_text(*value)) return std::string(value->get_string());
    return detail::write_json(*value);
}

// " after 1.5 ms"; empty where nothing says how long it took.
inline std::string time_spent(const json::object& record) {
    const auto* spent = record.if_contains("duration_ms");
    if (!spent || !spent->is_number()) return {};
    char text[48];
    std::snprintf(text, sizeof text, " after %.1f ms", spent->to_number<double>());
    return text;
}

// Whether a session or a tool is meant.
inline bool fits(const approval::Glob& glob, const std::string& text) {
    std::size_t steps = approval::rule_steps;
    return glob.matches(text, steps) == approval::Fit::yes;
}

// Records that are about the log itself.
inline bool is_of_chain(std::string_view event) {
    for (const std::string_view name : {"chain", "continued", "opened", "head", "torn", "lost"})
        if (event == name) return true;
    return false;
}

// A line of a log; nothing for one that is no record.
inline std::optional<json::object> parse_record(std::string_view line) {
    boost::system::error_code error;
    json::parse_options options;
    options.max_depth = 256;  // arguments are recorded down to 128
    json::value value = detail::parse_exact(line, error, options);
    if (error || !value.is_object() || !value.get_object().contains("event")) return std::nullopt;
    return std::move(value.get_object());
}

// Throws Error: bad_argument.
inline std::ifstream open_records(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    if (!in || std::filesystem::is_directory(file))
        throw Error(errc::bad_argument, file + ": cannot be read; is it an audit log?");
    return in;
}

// Calls `use` with every record; returns how many lines are none. Throws Error: bad_argument.
template <class Function>
std::size_t read_records(const std::string& file, Function use) {
    auto in = open_records(file);
    std::size_t broken = 0;
    std::string line;
    while (std::getline(in, line)) {
        if (line.empty()) continue;
        if (const auto record = parse_record(line))
            use(*record);
        else
            ++broken;
    }
    return broken;
}

}  // namespace ipybox::app
